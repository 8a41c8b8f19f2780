//! OpenLDAP's server for tests, with a few people in it.

use std::net::TcpStream;
use std::path::Path;

use weir_testkit::{DEADLINE, Identity, Program, TempDir, eventually, free_port};

pub(crate) struct Slapd {
    program: Program,
    /// For LDAP, and LDAP after StartTLS where there is an identity.
    pub port: u16,
    /// For LDAP in TLS, where there is an identity.
    pub tls_port: u16,
}

/// `jack` and `rose` below `ou=users,dc=example,dc=org`, and somebody with a difficult name.
const PEOPLE: &str = "dn: dc=example,dc=org
objectClass: dcObject
objectClass: organization
o: example
dc: example

dn: ou=users,dc=example,dc=org
objectClass: organizationalUnit
ou: users

dn: cn=jack,ou=users,dc=example,dc=org
objectClass: person
cn: jack
sn: jack
userPassword: jacks:word

dn: cn=rose,ou=users,dc=example,dc=org
objectClass: person
cn: rose
sn: rose
userPassword: roses

dn: cn=O\\2cNeill\\, J,ou=users,dc=example,dc=org
objectClass: person
cn: O,Neill, J
sn: o
userPassword: js
";

impl Slapd {
    /// `None` where there is no slapd on this machine, which has been said then.
    pub(crate) fn start(identity: Option<&Identity>) -> Option<Slapd> {
        Slapd::start_on(free_port(), identity)
    }

    pub(crate) fn start_on(port: u16, identity: Option<&Identity>) -> Option<Slapd> {
        let mut command = Program::find("slapd")?;
        let root = Path::new(command.get_program()).ancestors().nth(3).expect("it stands in usr/sbin");
        let schema = root.join("etc/ldap/schema/core.schema");
        let directory = TempDir::new();
        let data = directory.join("data");
        std::fs::create_dir(&data).expect("its own directory");
        let mut config = format!("include {}\npidfile {}\n", schema.display(), directory.join("pid").display(),);
        let tls_port = free_port();
        let mut urls = format!("ldap://127.0.0.1:{port}/");
        if let Some(identity) = identity {
            let certificate = directory.write("certificate.pem", &identity.certificate);
            let key = directory.write("key.pem", &identity.key);
            config +=
                &format!("TLSCertificateFile {}\nTLSCertificateKeyFile {}\n", certificate.display(), key.display());
            urls += &format!(" ldaps://127.0.0.1:{tls_port}/");
        }
        config += &format!("database ldif\nsuffix dc=example,dc=org\ndirectory {}\n", data.display());
        let config = directory.write("slapd.conf", config);
        let people = directory.write("people.ldif", PEOPLE);
        let mut add = Program::find("slapd")?;
        add.args(["-T", "add", "-f"]).arg(&config).arg("-l").arg(people);
        assert!(add.status().expect("it can be run").success(), "the people are valid");
        command.args(["-d", "0", "-h", &urls, "-f"]).arg(config);
        let slapd = Slapd { program: Program::start(command, directory), port, tls_port };
        eventually("slapd listens", DEADLINE, || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Some(slapd)
    }

    pub(crate) fn freeze(&self) {
        self.program.freeze();
    }

    pub(crate) fn thaw(&self) {
        self.program.thaw();
    }
}
