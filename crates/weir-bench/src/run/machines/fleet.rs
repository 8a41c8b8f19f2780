//! The machines of a run, with their roles, their processors, and connections to their agents.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{RecvTimeoutError, Sender, channel},
    },
    thread,
    time::Duration,
};

use super::{
    super::machine_error::{FleetError, LinkError},
    MachineOptions,
    clock_offset::{ClockOffset, ClockReading},
    namespace::NetworkNamespace,
    shares::GeneratorPlace,
};
use crate::{
    engine::clock::{now_ns, unix_ns},
    manifest::{LogicalCpu, Manifest, Pinning},
    result::{MachineRecord, MachineRole, TargetRecord},
    run::{
        Found, RunOptions,
        agent::{
            AgentAnswer, AgentKey, AgentLink, AgentMachine, AgentRequest, AgentSession, AgentSettings, ProgramKind,
        },
        plan,
    },
    scenario::{NetworkSettings, Scenario},
    target::{self, InstallError, Installed, RunCertificate},
};

/// The name of the machine that commands the run.
const HERE: &str = "this machine";
/// The name of its part behind a network that the lab makes.
const BEHIND: &str = "behind the network";
/// How often agents get a sign of life.
const ALIVE: Duration = Duration::from_secs(3);
/// Round trips of a comparison of clocks.
const READINGS: usize = 10;

/// The machines of a run. Their agents end everything when this value is dropped.
pub(in crate::run) struct Fleet {
    machines: Vec<FleetMachine>,
    generators: Vec<usize>,
    gateway: usize,
    backend: usize,
    /// Each ends a thread that shows signs of life to one machine.
    alive: Vec<(Sender<()>, thread::JoinHandle<()>)>,
    /// Last: the machines have processes in it.
    _namespace: Option<NetworkNamespace>,
}

struct FleetMachine {
    link: Arc<AgentLink>,
    machine: AgentMachine,
    roles: Vec<MachineRole>,
}

/// The processors of a row on several machines.
#[derive(Clone, Debug, Default)]
pub(super) struct FleetPinning {
    pub target: Vec<u32>,
    pub backend: Vec<u32>,
    pub generators: Vec<GeneratorPlace>,
    /// As one machine's, for the target's machine.
    pub of_gateway: Pinning,
}

impl Fleet {
    /// Connects to all agents.
    pub(in crate::run) fn connect(options: &RunOptions) -> Result<Fleet, FleetError> {
        let MachineOptions { generators, gateway, backend, key } = &options.machines;
        let key = AgentKey::read(key.as_ref().ok_or(FleetError::NoKey)?)?;
        if let Some(twice) = (1..generators.len()).find(|index| generators[..*index].contains(&generators[*index])) {
            return Err(FleetError::Twice(generators[twice].clone()));
        }
        let here = vec![HERE.to_owned()];
        let generators = if generators.is_empty() { &here } else { generators };
        let gateway = gateway.as_deref().unwrap_or(HERE);
        let backend = backend.as_deref().unwrap_or(HERE);
        let mut names: Vec<&str> = Vec::new();
        for name in generators.iter().map(String::as_str).chain([gateway, backend]) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let mut machines: Vec<FleetMachine> = Vec::new();
        for name in names.iter().filter(|name| **name != HERE) {
            let (link, machine) = AgentLink::connect(name, &key)?;
            machines.push(FleetMachine { link: Arc::new(link), machine, roles: Vec::new() });
        }
        check_reach(&machines)?;
        if names.contains(&HERE) {
            let address = machines.first().and_then(|one| one.link.own_address()).unwrap_or(Ipv4Addr::LOCALHOST);
            let session = AgentSession::new(own_settings(options), address, None);
            let (link, machine) = AgentLink::here(HERE, session, None)?;
            machines.push(FleetMachine { link: Arc::new(link), machine, roles: Vec::new() });
        }
        let generators: Vec<&str> = generators.iter().map(String::as_str).collect();
        Ok(Fleet::of(machines, None, (&generators, gateway, backend)))
    }

    /// The clients on this side of a network that the lab makes, targets and backends on the other.
    pub(in crate::run) fn behind(settings: &NetworkSettings, options: &RunOptions) -> Result<Fleet, FleetError> {
        if !options.machines.is_empty() {
            return Err(FleetError::TwoNetworks);
        }
        let namespace = NetworkNamespace::new(settings)?;
        let session = |address| AgentSession::new(own_settings(options), address, None);
        let (near, machine) = AgentLink::here(HERE, session(namespace.near), None)?;
        let near = FleetMachine { link: Arc::new(near), machine, roles: Vec::new() };
        let (far, mut machine) = AgentLink::here(BEHIND, session(namespace.far), Some(namespace.file()?))?;
        machine.manifest.versions.insert("network".to_owned(), namespace.by().to_owned());
        let far = FleetMachine { link: Arc::new(far), machine, roles: Vec::new() };
        Ok(Fleet::of(vec![near, far], Some(namespace), (&[HERE], BEHIND, BEHIND)))
    }

    /// Gives each machine its roles, by names.
    fn of(
        mut machines: Vec<FleetMachine>,
        namespace: Option<NetworkNamespace>,
        (generators, gateway, backend): (&[&str], &str, &str),
    ) -> Fleet {
        let index =
            |name: &str| machines.iter().position(|one| one.link.name == name).expect("each name has a machine by now");
        let generators: Vec<usize> = generators.iter().map(|name| index(name)).collect();
        let (gateway, backend) = (index(gateway), index(backend));
        for (role, indices) in [
            (MachineRole::Generator, generators.clone()),
            (MachineRole::Gateway, vec![gateway]),
            (MachineRole::Backend, vec![backend]),
        ] {
            indices.into_iter().for_each(|index| machines[index].roles.push(role));
        }
        let alive = machines.iter().map(|one| show_life(one.link.clone())).collect();
        Fleet { machines, generators, gateway, backend, alive, _namespace: namespace }
    }

    /// Begins a run on all machines.
    pub(in crate::run) fn begin(&self, certificate: &RunCertificate) -> Result<(), LinkError> {
        for one in &self.machines {
            let RunCertificate { cert_pem, key_pem, .. } = certificate.clone();
            one.link.order(AgentRequest::Begin { certificate: cert_pem, key: key_pem })?;
        }
        Ok(())
    }

    /// The peer of every target, with the program on the target's machine.
    pub(in crate::run) fn find_peers(&self, scenario: &Scenario) -> Result<BTreeMap<String, Found>, FleetError> {
        let find = |name: &String| {
            let variant = scenario.variant(name);
            let peer = target::read(&variant.peer)?;
            let installed = match peer.direct {
                true => Ok(None),
                false => match find(self.gateway(), ProgramKind::Peer, &variant.peer) {
                    Ok(installed) => Ok(Some(installed)),
                    Err(LinkError::Refused { address, reason }) => Err(InstallError::NotThere { address, reason }),
                    Err(error) => return Err(error.into()),
                },
            };
            Ok((name.clone(), (peer, installed)))
        };
        scenario.targets.iter().map(find).collect()
    }

    /// The backends that are not built into the lab, with their versions on the backend's machine.
    pub(in crate::run) fn find_backends(&self, scenario: &Scenario) -> Result<Vec<TargetRecord>, LinkError> {
        let mut names: Vec<&str> = scenario.rows.iter().filter_map(|row| scenario.backend(row).kind.folder()).collect();
        names.sort_unstable();
        names.dedup();
        let record = |name: &str| {
            let Installed { version, .. } = find(self.backend(), ProgramKind::Backend, name)?;
            Ok(TargetRecord { name: name.to_owned(), version, ..TargetRecord::default() })
        };
        names.into_iter().map(record).collect()
    }

    pub(super) fn gateway(&self) -> &AgentLink {
        &self.machines[self.gateway].link
    }

    pub(super) fn backend(&self) -> &AgentLink {
        &self.machines[self.backend].link
    }

    /// A generator by its position.
    pub(super) fn generator(&self, position: usize) -> &AgentLink {
        &self.machines[self.generators[position]].link
    }

    pub(in crate::run) fn generators(&self) -> usize {
        self.generators.len()
    }

    pub(super) fn gateway_address(&self) -> Ipv4Addr {
        self.machines[self.gateway].machine.address
    }

    /// The machines whose processes are sampled: that of the target first, then that of the backends if it is another one.
    pub(super) fn sampled(&self) -> [Option<&AgentLink>; 2] {
        [Some(self.gateway()), (self.backend != self.gateway).then(|| self.backend())]
    }

    /// The generator's machine is not sampled for another role.
    pub(super) fn is_sampled(&self, position: usize) -> bool {
        let index = self.generators[position];
        index == self.gateway || index == self.backend
    }

    /// The processors of each role, for targets with so many workers; 0 if there is no target.
    pub(super) fn pinning(&self, workers: u32, alone: bool) -> FleetPinning {
        let gateway = self.pinning_beside(self.gateway, workers, alone);
        let place = |index: &usize| GeneratorPlace {
            cpus: self.pinning_beside(*index, workers, alone).generator,
            is_shared: self.beside(*index).map(|one| one.roles.len()).sum::<usize>() > 1,
        };
        FleetPinning {
            target: gateway.target.clone(),
            backend: self.pinning_beside(self.backend, workers, alone).backend,
            generators: self.generators.iter().map(place).collect(),
            of_gateway: gateway,
        }
    }

    /// A machine, and the others that are parts of the same one.
    fn beside(&self, index: usize) -> impl Iterator<Item = &FleetMachine> {
        let this = &self.machines[index];
        self.machines.iter().filter(move |one| {
            std::ptr::eq(*one, this)
                || (!this.machine.boot_id.is_empty() && one.machine.boot_id == this.machine.boot_id)
        })
    }

    /// The processors of all roles on a machine.
    fn pinning_beside(&self, index: usize, workers: u32, alone: bool) -> Pinning {
        let has = |role: MachineRole| self.beside(index).any(|one| one.roles.contains(&role));
        let cpus = &self.machines[index].machine.cpus;
        let roles = (workers > 0 && has(MachineRole::Gateway), has(MachineRole::Generator), has(MachineRole::Backend));
        pinning_of(cpus, roles, workers, alone)
    }

    /// The machines as the result describes them.
    pub(in crate::run) fn records(&self) -> Vec<MachineRecord> {
        let record = |one: &FleetMachine| MachineRecord {
            name: one.link.name.clone(),
            roles: one.roles.clone(),
            manifest: one.machine.manifest.clone(),
            boot_id: one.machine.boot_id.clone(),
        };
        self.machines.iter().map(record).collect()
    }

    /// The target's machine.
    pub(in crate::run) fn manifest(&self, workers: u32, alone: bool) -> Manifest {
        let machine = &self.machines[self.gateway].machine;
        Manifest { pinning: self.pinning(workers, alone).of_gateway, ..machine.manifest.clone() }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for (end, thread) in self.alive.drain(..) {
            drop(end);
            let _ = thread.join();
        }
    }
}

/// The processors of the roles that a machine has: target, generator and backend.
fn pinning_of(
    cpus: &[LogicalCpu],
    (target, generator, backend): (bool, bool, bool),
    workers: u32,
    alone: bool,
) -> Pinning {
    let all = plan::by_core(cpus);
    let none = Pinning::default();
    match (target, generator, backend) {
        (true, false, false) => Pinning { target: all.into_iter().take(workers as usize).collect(), ..none },
        (false, true, false) => Pinning { generator: all, ..none },
        (false, false, true) => Pinning { backend: all, ..none },
        (true, false, true) => {
            let shared = plan::pinning(cpus, workers, alone);
            let rest: Vec<u32> = all.iter().copied().filter(|cpu| !shared.target.contains(cpu)).collect();
            Pinning { target: shared.target, backend: if rest.is_empty() { all } else { rest }, ..none }
        }
        (true, true, false) => {
            let shared = plan::pinning(cpus, workers, false);
            let rest: Vec<u32> = all.iter().copied().filter(|cpu| !shared.target.contains(cpu)).collect();
            Pinning { target: shared.target, generator: if rest.is_empty() { all } else { rest }, ..none }
        }
        (target, _, true) => plan::pinning(cpus, if target { workers } else { 0 }, alone),
        (false, false, false) => none,
    }
}

fn find(link: &AgentLink, kind: ProgramKind, name: &str) -> Result<Installed, LinkError> {
    match link.call(AgentRequest::Find { kind, name: name.to_owned() })? {
        AgentAnswer::Found { program, version } => Ok(Installed { program: PathBuf::from(program), version }),
        other => Err(link.unexpected(&other)),
    }
}

/// What the own machine may start.
fn own_settings(options: &RunOptions) -> AgentSettings {
    AgentSettings { programs: options.programs.clone(), cache: options.cache.clone(), only_listed: false }
}

/// Programs on a loopback address can be reached from one machine only.
fn check_reach(machines: &[FleetMachine]) -> Result<(), FleetError> {
    let find = |is_loopback: bool| machines.iter().find(|one| one.machine.address.is_loopback() == is_loopback);
    match (find(true), find(false)) {
        (Some(loopback), Some(other)) => {
            Err(FleetError::Unreachable { loopback: loopback.link.name.clone(), other: other.link.name.clone() })
        }
        _ => Ok(()),
    }
}

/// Shows signs of life to one machine on a thread until the sender is dropped.
fn show_life(link: Arc<AgentLink>) -> (Sender<()>, thread::JoinHandle<()>) {
    let (end, ended) = channel();
    let thread = thread::spawn(move || {
        while ended.recv_timeout(ALIVE) == Err(RecvTimeoutError::Timeout) {
            link.keep_alive();
        }
    });
    (end, thread)
}

/// Compares the clocks of an agent's machine with those of this one.
pub(super) fn compare_clocks(link: &AgentLink) -> Result<ClockOffset, LinkError> {
    let mut readings = Vec::with_capacity(READINGS);
    for _ in 0..READINGS {
        let (asked_ns, own_unix_ns) = (now_ns(), unix_ns());
        match link.call(AgentRequest::Clock)? {
            AgentAnswer::Clock { monotonic_ns, unix_ns } => readings.push(ClockReading {
                asked_ns,
                answered_ns: now_ns(),
                own_unix_ns,
                their_monotonic_ns: monotonic_ns,
                their_unix_ns: unix_ns,
            }),
            other => return Err(link.unexpected(&other)),
        }
    }
    Ok(ClockOffset::of(&readings).expect("there is a reading of each call"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_that_are_alone_on_a_machine_have_all_its_processors() {
        let cpus = [0, 1, 2, 3].map(|id| LogicalCpu { id, core: id, socket: 0 });
        let pinning = |roles| {
            let Pinning { target, generator, backend } = pinning_of(&cpus, roles, 2, false);
            (target, generator, backend)
        };
        assert_eq!(pinning((true, false, false)), (vec![0, 1], vec![], vec![]));
        assert_eq!(pinning((false, true, false)), (vec![], vec![0, 1, 2, 3], vec![]));
        assert_eq!(pinning((false, false, true)), (vec![], vec![], vec![0, 1, 2, 3]));
        assert_eq!(pinning((true, true, false)), (vec![0, 1], vec![2, 3], vec![]));
        assert_eq!(pinning((true, false, true)), (vec![0, 1], vec![], vec![2, 3]));
        assert_eq!(pinning((false, true, true)), (vec![], vec![0, 1], vec![2, 3]));
        assert_eq!(pinning((true, true, true)), (vec![0, 1], vec![2], vec![3]));
    }

    #[test]
    fn a_generator_beside_the_target_has_the_other_processors_also_if_the_backend_is_alone_elsewhere() {
        let cpus = [0, 1].map(|id| LogicalCpu { id, core: id, socket: 0 });
        let Pinning { target, generator, backend } = pinning_of(&cpus, (true, true, false), 1, true);
        assert_eq!((target, generator, backend), (vec![0], vec![1], vec![]));
    }
}
