"""A node of a Kubernetes cluster without containers: each pod is a process, with a network and an address of its own.

`agent.py SERVER TOKEN ADDRESS ECHO WEIR` runs in a directory with `ca.crt`, `server.crt` and `server.key`, as root and in namespaces for
networks, mounts and processes that end with it. It does what a scheduler and a kubelet do: it binds every pod, runs `ECHO` for
images named `echo-basic`, the program `coredns` beside it for images of that name, `WEIR` for the image `weir` and nothing for others,
writes the status of the pod (never ready if it has `readinessGates`, which nothing here opens), serves its log to the API server at `ADDRESS`, and waits before it ends a pod for as long as `preStop` says.
"""

import base64
import collections
import datetime
import http.client
import http.server
import itertools
import json
import os
import shutil
import ssl
import subprocess
import sys
import threading
import time
import urllib.parse

NODE = "agent"
# What images of these names run, if it has been built.
PROGRAMS = ("echo-basic", "coredns")
LOG_PORT = 10250
LOG_LINES = 100_000
BRIDGE = "10.244.0.1"
MERGE = "application/merge-patch+json"


class ApiServer:
    def __init__(self, server, token):
        self.server, self.token = server, token
        self.tls = ssl.create_default_context(cafile="ca.crt")

    def send(self, method, path, body=None, kind="application/json", timeout=30):
        connection = http.client.HTTPSConnection(self.server, context=self.tls, timeout=timeout)
        fields = {"Authorization": "Bearer " + self.token, "Content-Type": kind, "Accept": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), fields)
        return connection.getresponse()

    def call(self, method, path, body=None, kind="application/json", accepted=()):
        """The answer, or None if its status is one of `accepted`."""
        response = self.send(method, path, body, kind)
        content = response.read()
        if response.status in accepted:
            return None
        if response.status >= 300:
            raise OSError(f"{method} {path}: {response.status} {content[:300]}")
        return json.loads(content)

    def follow(self, path):
        """Every object of a collection as it is, and then after each change, for as long as the connection lasts."""
        found = self.call("GET", path)
        yield from found["items"]
        version = found["metadata"]["resourceVersion"]
        for line in self.send("GET", f"{path}?watch=1&resourceVersion={version}", timeout=None):
            event = json.loads(line)
            if event["type"] == "ERROR":
                return
            if event["type"] != "DELETED":
                yield event["object"]


class Pod:
    numbers = itertools.count(2)

    def __init__(self, api, pod):
        number = next(Pod.numbers)
        self.api, self.spec = api, pod["spec"]
        self.namespace, self.name, self.uid = (pod["metadata"][key] for key in ("namespace", "name", "uid"))
        self.path = f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"
        self.network, self.address = f"pod{number}", f"10.244.{number // 250}.{number % 250 + 1}"
        self.log = collections.deque(maxlen=LOG_LINES)
        self.process, self.stopping = None, threading.Event()

    def run(self):
        binding = {"metadata": {"name": self.name}, "target": {"kind": "Node", "name": NODE}}
        self.api.call("POST", self.path + "/binding", {"apiVersion": "v1", "kind": "Binding", **binding}, accepted=(409,))
        container = self.spec["containers"][0]
        self.connect()
        if program := next((name for name in PROGRAMS if name in container["image"] and os.path.exists(name)), None):
            self.start(container, ["chroot", self.root(container, program), "/" + program])
        elif container["image"] == "weir":
            self.start(container, [WEIR])
        status = {"status": "True", "lastTransitionTime": now()}
        kinds = ["PodScheduled", "Initialized", "ContainersReady"] + ["Ready"] * ("readinessGates" not in self.spec)
        self.api.call("PATCH", self.path + "/status", {"status": {
            "phase": "Running", "hostIP": BRIDGE, "podIP": self.address, "podIPs": [{"ip": self.address}], "startTime": now(),
            "conditions": [status | {"type": kind} for kind in kinds],
            "containerStatuses": [{
                "name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0,
                "ready": True, "started": True, "state": {"running": {"startedAt": now()}},
            }],
        }}, MERGE, accepted=(404,))

    def connect(self):
        ip("netns", "add", self.network)
        ip("link", "add", self.network, "type", "veth", "peer", "name", "eth0", "netns", self.network)
        ip("link", "set", self.network, "master", "pods", "up")
        ip("-n", self.network, "address", "add", self.address + "/16", "dev", "eth0")
        for device in ("eth0", "lo"):
            ip("-n", self.network, "link", "set", device, "up")
        ip("-n", self.network, "route", "add", "default", "via", BRIDGE)

    def root(self, container, program):
        """A directory with the program and the volumes of the container: what it sees as the file system."""
        root = os.path.abspath(self.uid)
        os.makedirs(root)
        os.link(program, f"{root}/{program}")
        volumes = {volume["name"]: volume for volume in self.spec.get("volumes", [])}
        for mount in container.get("volumeMounts", []):
            self.fill(volumes[mount["name"]], root + mount["mountPath"])
        return root

    def start(self, container, program):
        command = ["ip", "netns", "exec", self.network, *program, *container.get("args", [])]
        env = {variable["name"]: self.value(variable) for variable in container.get("env", [])}
        self.process = subprocess.Popen(command, env=env | {"PATH": os.environ["PATH"]}, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        threading.Thread(target=self.read_log, daemon=True).start()
        before = set()
        while not (sockets := self.listening()) or sockets != before:
            if self.process.poll() is not None:
                raise OSError(f"it has ended: {list(self.log)[-3:]}")
            before = sockets
            time.sleep(0.05)

    def fill(self, volume, directory):
        """Waits, as a kubelet does, until the object exists."""
        if "secret" in volume:
            kind, source, decode = "secrets/" + volume["secret"]["secretName"], volume["secret"], base64.b64decode
        elif "configMap" in volume:
            kind, source, decode = "configmaps/" + volume["configMap"]["name"], volume["configMap"], str.encode
        else:
            return
        while not (found := self.api.call("GET", f"/api/v1/namespaces/{self.namespace}/{kind}", accepted=(404,))):
            if self.stopping.wait(0.2):
                raise OSError("it is deleted before its volumes exist")
        os.makedirs(directory)
        for item in source.get("items") or [{"key": key, "path": key} for key in found["data"]]:
            with open(os.path.join(directory, item["path"]), "wb") as file:
                file.write(decode(found["data"][item["key"]]))

    def value(self, variable):
        field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        known = {"metadata.name": self.name, "metadata.namespace": self.namespace, "status.podIP": self.address}
        return known.get(field, variable.get("value", ""))

    def listening(self):
        """The sockets that wait for clients, as the kernel lists them in the network of the process."""
        found = set()
        for protocol in ("tcp", "tcp6", "udp", "udp6"):
            with open(f"/proc/{self.process.pid}/net/{protocol}") as table:
                rows = [line.split() for line in table][1:]
            found |= {(protocol, row[1]) for row in rows if protocol.startswith("udp") or row[3] == "0A"}
        return found

    def read_log(self):
        for line in self.process.stdout:
            self.log.append((datetime.datetime.now(datetime.UTC), line))

    def stop(self):
        self.stopping.set()
        if self.process:
            lifecycle = self.spec["containers"][0].get("lifecycle", {})
            time.sleep(lifecycle.get("preStop", {}).get("sleep", {}).get("seconds", 0))
            self.process.terminate()
            self.process.wait()
        subprocess.run(["ip", "netns", "delete", self.network], stderr=subprocess.DEVNULL)
        remove(self.api, self.path, self.uid)


def remove(api, path, uid):
    api.call("DELETE", path, {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}, accepted=(404, 409))


class LogHandler(http.server.BaseHTTPRequestHandler):
    """`/containerLogs/NAMESPACE/POD/CONTAINER?sinceTime=TIME`, as a kubelet answers it."""

    pods = {}

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        _, _, namespace, name, *_ = url.path.split("/")
        since = urllib.parse.parse_qs(url.query).get("sinceTime", ["1970-01-01T00:00:00Z"])[0]
        since = datetime.datetime.fromisoformat(since)
        pods = [pod for pod in list(self.pods.values()) if (pod.namespace, pod.name) == (namespace, name)]
        content = "".join(line for pod in pods for at, line in list(pod.log) if at >= since).encode()
        self.send_response(200 if pods else 404)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


def serve_logs(address):
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain("server.crt", "server.key")
    server = http.server.ThreadingHTTPServer((address, LOG_PORT), LogHandler)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


def now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def attempt(act, pod):
    try:
        act()
    except (OSError, subprocess.CalledProcessError) as problem:
        print(f"{pod.namespace}/{pod.name}: {problem}", flush=True)


def seen(api, found):
    """A pod that is new is started, and one that is to be deleted is stopped."""
    uid, is_leaving = found["metadata"]["uid"], "deletionTimestamp" in found["metadata"]
    pod = LogHandler.pods.get(uid)
    if pod is None and not is_leaving:
        pod = LogHandler.pods[uid] = Pod(api, found)
        threading.Thread(target=attempt, args=(pod.run, pod), daemon=True).start()
    elif pod and is_leaving and not pod.stopping.is_set():
        pod.stopping.set()
        threading.Thread(target=attempt, args=(pod.stop, pod), daemon=True).start()


def main(server, token, address, echo, weir):
    global WEIR
    WEIR = weir
    # Names of networks are files there; those of the machine are left alone.
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    ip("link", "add", "pods", "type", "bridge")
    ip("address", "add", BRIDGE + "/16", "dev", "pods")
    ip("link", "set", "pods", "up")
    # Each pod has a link to it in its root, so it must be in the same file system.
    programs = {program: os.path.join(os.path.dirname(echo), program) for program in PROGRAMS}
    for program, path in programs.items():
        if os.path.exists(path):
            shutil.copy(path, program)
    api = ApiServer(server, token)
    serve_logs(address)
    api.call("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}, accepted=(409,))
    room = {"cpu": "64", "memory": "64Gi", "pods": "500"}
    api.call("PATCH", f"/api/v1/nodes/{NODE}/status", {"status": {
        "addresses": [{"type": "InternalIP", "address": address}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": LOG_PORT}},
        "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": now(), "lastTransitionTime": now()}],
        "capacity": room, "allocatable": room,
    }}, MERGE)
    while True:
        try:
            for found in api.follow("/api/v1/pods"):
                seen(api, found)
        except OSError as problem:
            print(problem, flush=True)
            time.sleep(0.5)


if __name__ == "__main__":
    main(*sys.argv[1:])
