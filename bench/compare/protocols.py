"""The gateways over TLS and in HTTP/2: what each is configured with beyond `gateways.py`, and what is compared.

Every gateway proves itself with the same certificate, checks the backend's, keeps its connections to it, and resumes
sessions. HTTP/2 is spoken in the clear, so that what is counted is HTTP/2 and not its encryption.
"""

import ssl
import subprocess

import measure
from gateways import (ENVOY_KINDS, MANY, Running, envoy_command, free_port, haproxy_command, nginx_http, nginx_top, tool,
                      write)

KINDS = {"ecdsa": ["ec", "-pkeyopt", "ec_paramgen_curve:P-256"], "rsa": ["rsa:2048"]}
NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n"


class Certificates:
    """An authority and what it has signed for this machine, an ECDSA and an RSA certificate."""

    def __init__(self, folder):
        self.folder, self.ca = folder, folder / "ca.pem"
        extensions = write(folder, "names.cnf", NAMES)
        self.openssl("req", "-x509", "-newkey", *KINDS["ecdsa"], "-nodes", "-days", "2", "-subj", "/CN=authority",
                     "-keyout", folder / "ca.key", "-out", self.ca)
        for kind, key in KINDS.items():
            request = folder / f"{kind}.csr"
            self.openssl("req", "-newkey", *key, "-nodes", "-subj", "/CN=localhost", "-keyout", self.key(kind),
                         "-out", request)
            self.openssl("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", folder / "ca.key",
                         "-CAcreateserial", "-days", "2", "-extfile", extensions, "-out", self.certificate(kind))
            both = self.certificate(kind).read_text() + self.key(kind).read_text()
            write(folder, f"{kind}-both.pem", both)

    def certificate(self, kind):
        return self.folder / f"{kind}.pem"

    def key(self, kind):
        return self.folder / f"{kind}.key"

    @staticmethod
    def openssl(*arguments):
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


class Backend:
    """nginx with one worker that answers in HTTP/1.1 in the clear and over TLS, and as a gRPC service in HTTP/2."""

    def __init__(self, folder, cpu, certificates):
        self.plain, self.tls, self.grpc = free_port(), free_port(), free_port()
        config = write(folder, "backend-protocols.conf", f"""
            {nginx_top(folder, "backend-protocols")}
            http {{
                {nginx_http(folder, "backend-protocols")}
                http2_max_concurrent_streams 1024;
                ssl_certificate {certificates.certificate("ecdsa")}; ssl_certificate_key {certificates.key("ecdsa")};
                ssl_session_cache shared:s:10m; ssl_protocols TLSv1.2 TLSv1.3;
                server {{ listen 127.0.0.1:{self.plain} backlog=65535;
                          location / {{ default_type application/json; return 200 '{{"hello":"backend"}}'; }} }}
                server {{ listen 127.0.0.1:{self.tls} ssl backlog=65535;
                          location / {{ default_type application/json; return 200 '{{"hello":"backend"}}'; }} }}
                server {{ listen 127.0.0.1:{self.grpc} http2 backlog=65535;
                          location / {{ default_type application/grpc; add_trailer grpc-status 0;
                                        return 200 "hello"; }} }}
            }}""")
        command = [tool("nginx"), "-e", "stderr", "-c", config]
        self.running = Running("backend-protocols", command, self.plain, cpu, folder)

    def stop(self):
        self.running.stop()


# The gateways: `case` is "tls" (TLS on both legs), "h2" (HTTP/2 to HTTP/1.1) or "grpc" (HTTP/2 on both legs) ------------

def weir(folder, backend, certificates, case, kind, binary):
    port = free_port()
    to = {"tls": backend.tls, "h2": backend.plain, "grpc": backend.grpc}[case]
    scheme = {"tls": f"scheme: https, tls: {{ ca: {certificates.ca} }}, ", "h2": "", "grpc": "scheme: grpc, "}[case]
    config = write(folder, f"weir-{case}-{kind}.yaml", "\n".join([
        f'listen: [{{ address: "127.0.0.1:{port}", tls: {"true" if case == "tls" else "false"} }}]',
        'status: "127.0.0.1:0"', "worker_processes: 1", "ssls:",
        f'  - {{ sni: "*", cert: {certificates.certificate(kind)}, key: {certificates.key(kind)} }}', "routes:",
        f'  - {{ id: all, uri: /*, upstream: {{ {scheme}type: roundrobin, nodes: {{ "127.0.0.1:{to}": 1 }}, '
        f"keepalive_pool: {{ size: 12000, idle_timeout: 3600, requests: {MANY} }} }} }}",
        '  - { id: fixed, uri: /fixed, plugins: { mocking: { response_status: 200, content_type: text/plain, '
        'response_example: "Hello from the gateway." } } }', ""]))
    return [binary, "run", config], port


def nginx(folder, backend, certificates, case, kind, _):
    port = free_port()
    to = {"tls": backend.tls, "h2": backend.plain, "grpc": backend.grpc}[case]
    listen = {"tls": "ssl", "h2": "http2", "grpc": "http2"}[case]
    verify = f"proxy_ssl_verify on; proxy_ssl_trusted_certificate {certificates.ca}; proxy_ssl_name localhost;"
    there = {"tls": f"proxy_pass https://backend; {verify}", "h2": "proxy_pass http://backend;",
             "grpc": "grpc_pass grpc://backend;"}[case]
    config = write(folder, f"nginx-{case}-{kind}.conf", f"""
        {nginx_top(folder, f"nginx-{case}")}
        http {{
            {nginx_http(folder, f"nginx-{case}")}
            http2_max_concurrent_streams 1024; http2_max_requests {MANY};
            ssl_certificate {certificates.certificate(kind)}; ssl_certificate_key {certificates.key(kind)};
            ssl_session_cache shared:s:10m;
            # Debian's nginx speaks nothing newer than TLS 1.2 unless told.
            ssl_protocols TLSv1.2 TLSv1.3; proxy_ssl_protocols TLSv1.2 TLSv1.3;
            upstream backend {{ server 127.0.0.1:{to}; keepalive 12000; keepalive_requests {MANY}; }}
            proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host;
            server {{
                listen 127.0.0.1:{port} {listen} backlog=65535;
                location / {{ {there} }}
                location = /fixed {{ return 200 "Hello from the gateway."; }}
            }}
        }}""")
    return [tool("nginx"), "-e", "stderr", "-c", config], port


def haproxy(folder, backend, certificates, case, kind, _):
    port = free_port()
    bind = {"tls": f"ssl crt {folder}/{kind}-both.pem alpn http/1.1", "h2": "proto h2", "grpc": "proto h2"}[case]
    server = {"tls": f"127.0.0.1:{backend.tls} ssl verify required ca-file {certificates.ca}",
              "h2": f"127.0.0.1:{backend.plain}", "grpc": f"127.0.0.1:{backend.grpc} proto h2"}[case]
    return haproxy_command(folder, f"haproxy-{case}-{kind}", port, bind, server), port


def envoy(folder, backend, certificates, case, kind, _):
    port = free_port()
    to = {"tls": backend.tls, "h2": backend.plain, "grpc": backend.grpc}[case]
    chain, cluster = {}, {}
    if case == "tls":
        own = {"certificate_chain": {"filename": str(certificates.certificate(kind))},
               "private_key": {"filename": str(certificates.key(kind))}}
        chain["transport_socket"] = {"name": "envoy.transport_sockets.tls", "typed_config": {
            "@type": ENVOY_KINDS + "transport_sockets.tls.v3.DownstreamTlsContext",
            "common_tls_context": {"tls_certificates": [own], "alpn_protocols": ["http/1.1"]}}}
        cluster["transport_socket"] = {"name": "envoy.transport_sockets.tls", "typed_config": {
            "@type": ENVOY_KINDS + "transport_sockets.tls.v3.UpstreamTlsContext", "sni": "localhost",
            "common_tls_context": {"validation_context": {"trusted_ca": {"filename": str(certificates.ca)}}}}}
    if case == "grpc":
        cluster["typed_extension_protocol_options"] = {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": ENVOY_KINDS + "upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {}}}}
    return envoy_command(folder, f"envoy-{case}-{kind}", port, to, chain=chain, cluster=cluster), port


GATEWAYS = {"weir": weir, "nginx": nginx, "haproxy": haproxy, "envoy": envoy}


# What is compared ------------------------------------------------------------------------------------------------------

class Protocols:
    """What the modes below share: certificates and a backend beside the comparison's own."""

    def __init__(self, bench, gateway_cpu, load_cpu):
        self.bench, self.gateway_cpu, self.load_cpu = bench, gateway_cpu, load_cpu
        self.names = [name for name in bench.names if name in GATEWAYS]
        self.certificates = Certificates(bench.folder)
        self.backend = Backend(bench.folder, load_cpu, self.certificates)
        # A gRPC message: not compressed, 32 bytes long.
        self.message = bench.folder / "message"
        self.message.write_bytes(b"\0\0\0\0\x20" + b"x" * 32)

    def start(self, name, case, kind="ecdsa", under=()):
        command, port = GATEWAYS[name](self.bench.folder, self.backend, self.certificates, case, kind,
                                       self.bench.options.weir)
        return Running(name, [*under, *command], port, self.gateway_cpu, self.bench.folder)

    def rounds(self, case, load, kind="ecdsa", names=None):
        """Alternating runs of `load(port, seconds)`; the order turns with each round."""
        running = {name: self.start(name, case, kind) for name in names or self.names}
        samples = {name: [] for name in running}
        try:
            for one in running.values():
                load(one.port, 1)
            names = list(running)
            for number in range(self.bench.options.rounds):
                shift = number % len(names)
                for name in names[shift:] + names[:shift]:
                    sample = measure.cost(running[name], lambda one: load(one.port, self.bench.options.seconds))
                    samples[name].append(sample)
        finally:
            for one in running.values():
                one.stop()
        return samples

    def tls(self, table):
        for connections in (64, 256, 2000):
            def load(port, seconds, connections=connections):
                return measure.wrk(f"https://127.0.0.1:{port}/", connections, seconds + connections // 1000,
                                   self.load_cpu)
            table(f"HTTPS in and out, {connections:,} connections", self.rounds("tls", load))

    def h2(self, table):
        def load(port, seconds):
            return measure.h2load(f"http://127.0.0.1:{port}/", self.load_cpu, "-c8", "-m32", f"-D{seconds}")
        table("HTTP/2 in, HTTP/1.1 out, 8 connections of 32 streams", self.rounds("h2", load))

    def grpc(self, table):
        def load(port, seconds):
            return measure.h2load(f"http://127.0.0.1:{port}/s/m", self.load_cpu, "-c8", "-m32", f"-D{seconds}",
                                  *self.as_grpc())
        table("gRPC unary, HTTP/2 in and out, 8 connections of 32 streams", self.rounds("grpc", load),
              "envoy" if "envoy" in self.names else "nginx")

    def handshakes(self, table):
        # `openssl s_time` sends HTTP/1.0, which Envoy refuses.
        names = [name for name in self.names if name != "envoy"]
        for kind in KINDS:
            for title, how in (("full", "-new"), ("resumed", "-reuse")):
                def load(port, seconds, how=how):
                    return measure.s_time(port, seconds, self.load_cpu, how)
                table(f"{title} TLS handshakes with {kind.upper()}, one small answer each",
                      self.rounds("tls", load, kind, names))

    def idle_tls(self, _):
        context = ssl.create_default_context(cafile=str(self.certificates.ca))
        context.check_hostname = False
        # Python holds the clients' side, which takes more than a plain socket.
        count = min(self.bench.options.idle, 10_000)
        print(f"\n### {count:,} idle keep-alive connections in TLS\n\n| gateway | KiB each |\n|---|--:|")
        for name in self.names:
            one = self.start(name, "tls")
            try:
                each = measure.idle_memory(one, count, secured=context.wrap_socket)
                print(f"| {name} | {each / 1024:.2f} |", flush=True)
            except (OSError, RuntimeError) as error:
                print(f"| {name} | not possible: {error} |", flush=True)
            finally:
                one.stop()

    def as_grpc(self):
        return ["-d", str(self.message), "-H", "content-type: application/grpc", "-H", "te: trailers"]

    def instructions(self, under, say):
        """User instructions a request under valgrind."""
        cases = {"HTTPS in and out": ("tls", "https", "/", ["--h1", "-c64", "-m1"]),
                 "HTTP/2 in, HTTP/1.1 out": ("h2", "http", "/", ["-c8", "-m32"]),
                 "gRPC unary": ("grpc", "http", "/s/m", ["-c8", "-m32", *self.as_grpc()])}
        names = [name for name in self.names if name != "haproxy"]
        print("\n### User instructions a request over TLS and HTTP/2, in thousands (valgrind)\n")
        print("| request | " + " | ".join(names) + " |\n|---|" + "--:|" * len(names))
        for title, (case, scheme, path, how) in cases.items():
            counts = []
            for name in names:
                say(f"instructions: {title}: {name}")

                def load(port, requests, scheme=scheme, path=path, how=how):
                    measure.h2load(f"{scheme}://127.0.0.1:{port}{path}", self.load_cpu, *how, f"-n{requests}")
                counts.append(measure.counted_by_valgrind(
                    lambda name=name, case=case: self.start(name, case, under=under), load))
            print(f"| {title} | " + " | ".join(f"{count / 1000:.1f}" for count in counts) + " |", flush=True)

    def stop(self):
        self.backend.stop()
