"""What each policy costs: a table of all plugins in a typical configuration, and whether weir's own meter is right."""

import base64
import email.utils
import hashlib
import hmac
import json
import socketserver
import statistics
import sys
import threading

import gateways
import measure

KEY = "a-key-of-some-length-0123456789"


def encoded(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unsigned(algorithm, claims):
    """A JSON web token as it is signed (RFC 7515)."""
    return ".".join(encoded(json.dumps(part).encode()) for part in ({"alg": algorithm, "typ": "JWT"}, claims))


def token():
    """A token of the consumer, signed with its secret."""
    text = unsigned("HS256", {"key": "jack"})
    return f"{text}.{encoded(hmac.new(KEY.encode(), text.encode(), hashlib.sha256).digest())}"


# A provider's token that is good until the year 2100, and what it is verified with. Nobody has kept the other half.
PROVIDER = "https://login.example"
PROVIDERS_KEY = """-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAn7QUIr6/taug7IHJlWr36HP/8v4zZmNGkX9AA0W1dQg=
-----END PUBLIC KEY-----
"""
PROVIDERS_TOKEN = unsigned("EdDSA", {"iss": PROVIDER, "sub": "jack", "exp": 4102444800}) + (
    ".Nt2lcv2hrdU-0yUd2Re4aT0HpIcmf-mOXVG5Ca4F0vYRMAyG26ouoNUqnF3STWAfM0bN7Y9zdyRCpx6nqJfzBQ")


def signature(target):
    """The fields of a GET request that `hmac-auth` finds signed with the consumer's secret."""
    date = email.utils.formatdate(usegmt=True)
    text = f"jack\nGET {target}\ndate: {date}\n"
    signed = base64.b64encode(hmac.new(KEY.encode(), text.encode(), hashlib.sha256).digest()).decode()
    return [f"Date: {date}", f'Authorization: Signature keyId="jack",algorithm="hmac-sha256",'
                             f'headers="@request-target date",signature="{signed}"']


class Bind(socketserver.BaseRequestHandler):
    """A directory that finds every password right (RFC 4511 §4.2.2). Who remembers that asks once."""

    def handle(self):
        while request := self.request.recv(65536):
            number = request[request.index(b"\x02"):][:3]
            self.request.sendall(b"\x30\x0c" + number + b"\x61\x07\x0a\x01\x00\x04\x00\x04\x00")


def path_of(route):
    """As long for one as for another, since each byte has to be read."""
    return f"/{route:-<24}"


class Policy:
    """A plugin as it is typically configured, and a request that it lets through."""

    def __init__(self, options, headers=(), path="", body=None, why=""):
        self.options, self.headers, self.path, self.body, self.why = options, headers, path, body, why


APIKEY = f"apikey: {KEY}"
BASIC = "Authorization: Basic " + base64.b64encode(f"jack:{KEY}".encode()).decode()
BODY = json.dumps({"name": "something", "items": list(range(50)), "note": "x" * 500})
XML = ("<order><name>something</name><items>" + "".join(f"<item>{number}</item>" for number in range(10))
       + f"</items><note>{'x' * 500}</note></order>")
JSON = "Content-Type: application/json"
BROWSER = "User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko)"
SECOND = "waits for a second service, whose request and answer are in the figure"
READS = "reads the whole body, here of some 700 bytes"

# `{backend}` is the address of the backend, `{directory}` that of a directory, and `{folder}` a folder to write to.
POLICIES = {
    "api-breaker": Policy("{ break_response_code: 503, unhealthy: { http_statuses: [500, 503], failures: 5 } }"),
    "basic-auth": Policy("{}", [BASIC], why="takes the digest of name and password, and compares it in constant time"),
    "brotli": Policy("{ types: [text/plain], min_length: 1 }", ["Accept-Encoding: br"], why="compresses the answer"),
    "client-control": Policy("{ max_body_size: 1048576 }"),
    "consumer-restriction": Policy("{ whitelist: [jack] }, key-auth: {}", [APIKEY]),
    "content-filter": Policy('{ rules: [{ in: query, pattern: "union\\\\s+select", ignore_case: true, action: block }] }',
                             path="?q=something&page=2"),
    "cors": Policy('{ allow_origins: "https://a.example,https://b.example", allow_methods: "GET,POST", max_age: 600 }',
                   ["Origin: https://a.example"], why="adds five fields to the answer, each of them looked at"),
    "csrf": Policy("{ key: a-long-secret, expires: 3600 }", why="makes and signs a token for each answer"),
    "fault-injection": Policy('{ abort: { http_status: 503, vars: [[[arg_fail, "==", "1"]]] } }'),
    "file-logger": Policy("{ path: {folder}/records.log }", why="writes a record of the exchange as JSON"),
    "forward-auth": Policy('{ uri: "http://{backend}/", request_headers: [Authorization] }', why=SECOND),
    "gzip": Policy("{ types: [text/plain], min_length: 1 }", ["Accept-Encoding: gzip"], why="compresses the answer"),
    "hmac-auth": Policy("{ clock_skew: 86400 }", signature(path_of("hmac-auth")),
                        why="reads the date, and computes the signature of each request"),
    "http-logger": Policy('{ uri: "http://{backend}/", batch_max_size: 1000 }',
                          why="writes a record of the exchange as JSON and sends it"),
    "ip-restriction": Policy("{ whitelist: [127.0.0.0/8, 10.0.0.0/8, 192.168.0.0/16] }"),
    "json-threat-protection": Policy("{ max_depth: 8, max_members: 100 }", [JSON], body=BODY, why=READS),
    "jwt-auth": Policy("{}", [f"Authorization: Bearer {token()}"]),
    "key-auth": Policy("{}", [APIKEY]),
    "ldap-auth": Policy('{ base_dn: "ou=users,dc=example", ldap_uri: "{directory}", cache_ttl: 3600 }', [BASIC],
                        why="takes the digest of name and password, and finds it among those that were right"),
    "limit-conn": Policy("{ conn: 100000, burst: 0, default_conn_delay: 0.1, key: remote_addr }"),
    "limit-count": Policy("{ count: 200000000, time_window: 3600 }"),
    "limit-req": Policy("{ rate: 100000000, burst: 100000000, key: remote_addr }"),
    "message-size": Policy("{ request: { max: 1048576 }, response: { max: 16777216 } }"),
    "mocking": Policy("{ response_example: hello }"),
    "multi-auth": Policy("{ auth_plugins: [{ key-auth: {} }, { basic-auth: {} }] }", [APIKEY]),
    "openid-connect": Policy(f'{{ client_id: weir, discovery: "{PROVIDER}/.well-known/openid-configuration", '
                             f"bearer_only: true, public_key: {json.dumps(PROVIDERS_KEY)}, "
                             f'claim_validator: {{ issuer: {{ valid_issuers: ["{PROVIDER}"] }} }} }}',
                             [f"Authorization: Bearer {PROVIDERS_TOKEN}"],
                             why="finds the token among those that were good, and writes its claims for the upstream"),
    "prometheus": Policy("{}"),
    "proxy-mirror": Policy('{ host: "http://{backend}", sample_ratio: 0.1 }', why="sends a tenth of the requests twice"),
    "proxy-rewrite": Policy('{ regex_uri: ["^/(.*)$", "/v1/$1"], headers: { set: { X-Api-Version: v1 }, '
                            "remove: [X-Debug] } }", why="runs a regular expression, and brings the new path into canonical form"),
    "real-ip": Policy("{ source: http_x_forwarded_for, trusted_addresses: [127.0.0.0/8], recursive: true }",
                      ["X-Forwarded-For: 192.0.2.7, 127.0.0.2"]),
    "redirect": Policy("{ uri: https://www.example.com$request_uri, ret_code: 301 }"),
    "referer-restriction": Policy('{ whitelist: ["*.example.com"] }', ["Referer: https://www.example.com/a"]),
    "request-id": Policy("{ algorithm: uuidv7 }"),
    "request-validation": Policy("{ body_schema: { type: object, required: [name], properties: { name: "
                                 "{ type: string, maxLength: 100 } } } }", [JSON], body=BODY, why=READS),
    "response-rewrite": Policy("{ headers: { set: { X-Served-By: $upstream_addr }, remove: [X-Powered-By] } }",
                               why="renders a variable into a field of the answer"),
    "time-restriction": Policy('{ time_zone: Europe/Zurich, allow: [{ from: "00:00", to: "24:00" }] }'),
    "traffic-split": Policy('{ rules: [{ match: [{ vars: [[http_x_canary, "==", "yes"]] }], '
                            "weighted_upstreams: [{ upstream_id: u, weight: 1 }, { weight: 9 }] }] }",
                            ["X-Canary: yes"]),
    "ua-restriction": Policy('{ denylist: ["^curl/", "(?i)python"], bypass_missing: true }', [BROWSER]),
    "uri-blocker": Policy('{ block_rules: ["\\\\.(env|git)", "^/admin"] }'),
    "workflow": Policy('{ rules: [{ case: [[uri, "==", /old]], actions: [[return, { code: 410 }]] }] }'),
    "xml-threat-protection": Policy("{ max_depth: 8 }", ["Content-Type: application/xml"], body=XML, why=READS),
}
# What cannot be measured against the same request without it, and why.
ELSEWHERE = {"grpc-web": "whose upstream is a gRPC service, which does not understand the same request without it"}

# For the meter. What a policy adds to messages costs others, too: whoever writes them, and the kernel.
METERED = {
    "same": ["basic-auth", "content-filter", "ip-restriction", "key-auth", "limit-conn", "limit-req", "referer-restriction",
             "time-restriction", "ua-restriction", "uri-blocker"],
    "more": ["cors", "csrf", "key-auth", "limit-count", "proxy-rewrite", "request-id", "response-rewrite", "uri-blocker"],
    "large": ["brotli"],
}
METERED_REQUEST = Policy("", [APIKEY, BASIC, BROWSER, "Referer: https://www.example.com/a", "Origin: https://a.example",
                              "Accept-Encoding: br"], path="?q=something&page=2")
# An answer from here, after all other policies: without a backend that shares its processor with the load, the gateway
# is what is short, and a policy more costs what it costs instead of making batches larger.
ANSWER = "mocking: { _meta: { priority: 1 }, content_type: text/plain, response_example: hello }"
PIPELINED = 16
EXPLAINED_ABOVE = 3000


class Policies:
    """A gateway with a route for each of some policies, one with none, and one with several."""

    def __init__(self, bench, gateway_cpu, load_cpu, chosen):
        self.bench, self.gateway_cpu, self.load_cpu = bench, gateway_cpu, load_cpu
        self.chosen = chosen or list(POLICIES)
        unknown = [name for name in self.chosen if name not in POLICIES]
        if unknown:
            sys.exit(f"no such policies here: {', '.join(unknown)}; there are {', '.join(POLICIES)}")
        self.backend = gateways.backend(bench.folder, "backend-of-policies", load_cpu)
        self.directory = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Bind)
        self.directory.daemon_threads = True
        threading.Thread(target=self.directory.serve_forever, daemon=True).start()

    def stop(self):
        self.directory.shutdown()
        self.directory.server_close()
        self.backend.stop()

    def options(self, name):
        backend = f"127.0.0.1:{self.backend.port}"
        directory = f"127.0.0.1:{self.directory.server_address[1]}"
        options = POLICIES[name].options.replace("{backend}", backend).replace("{directory}", directory)
        return f"{name}: {options.replace('{folder}', str(self.bench.folder))}"

    def start(self, under=(), price_every=128):
        port, status = gateways.free_port(), gateways.free_port()
        chains = {name: self.options(name) for name in self.chosen}
        chains["bare"] = ANSWER
        for route, names in METERED.items():
            chains[route] = ", ".join([*map(self.options, names), ANSWER])
        routes = [f"  - {{ id: {name}, uri: {path_of(name)}, plugins: {{ {chain} }}, upstream_id: u }}"
                  for name, chain in chains.items()]
        config = gateways.write(self.bench.folder, f"policies-{price_every}.yaml", "\n".join([
            f'listen: ["127.0.0.1:{port}"]', f'status: "127.0.0.1:{status}"', "worker_processes: 1",
            f"price_every: {price_every}", "routes:", f"  - {{ id: plain, uri: {path_of('plain')}, upstream_id: u }}", *routes,
            "upstreams:", f'  - {{ id: u, type: roundrobin, nodes: {{ "127.0.0.1:{self.backend.port}": 1 }} }}',
            "consumers:",
            f'  - {{ username: jack, plugins: {{ key-auth: {{ key: "{KEY}" }}, basic-auth: {{ username: jack, '
            f'password: "{KEY}" }}, jwt-auth: {{ key: jack, secret: "{KEY}" }}, hmac-auth: {{ key_id: jack, '
            f'secret_key: "{KEY}" }}, ldap-auth: {{ user_dn: "cn=jack,ou=users,dc=example" }} }} }}', ""]))
        running = gateways.Running(f"weir-{price_every}", [*under, self.bench.options.weir, "run", config], port,
                                   self.gateway_cpu, self.bench.folder)
        running.status = status
        return running

    def request(self, name, policy=None):
        """What is sent with a policy; its path may name another route, so that the same is sent without it."""
        policy = policy or POLICIES[name]
        method, length = ("POST", [f"Content-Length: {len(policy.body)}"]) if policy.body else ("GET", [])
        lines = [f"{method} {path_of(name)}{policy.path} HTTP/1.1", "Host: 127.0.0.1", *policy.headers, *length]
        return "\r\n".join([*lines, "", policy.body or ""]).encode()

    def script(self, name, policy, pipelined=1):
        """The same for wrk, so many at a time."""
        fields = [f'wrk.headers["{field}"] = {json.dumps(value)}'
                  for field, value in (line.split(": ", 1) for line in policy.headers)]
        body = [f'wrk.method = "POST"\nwrk.body = {json.dumps(policy.body)}'] if policy.body else []
        batch = [f"init = function() local one = wrk.format(); batch = one:rep({pipelined}) end",
                 "request = function() return batch end"] if pipelined > 1 else []
        return gateways.write(self.bench.folder, f"{name}.lua", "\n".join([*fields, *body, *batch, ""]))

    def run(self, running, route, name, policy, pipelined=1):
        script = self.script(name, policy, pipelined)
        one = measure.sample(running, f"{path_of(route)}{policy.path}", 64, self.bench.options.seconds, self.load_cpu, script)
        if one["errors"]:
            raise RuntimeError(f"{name}: {one['errors']} requests were refused:\n{running.written()}")
        return one

    def instructions(self, valgrind, route, policy):
        request = self.request(route, policy)
        return measure.counted_by_valgrind(lambda: self.start(valgrind), measure.batches(request), 1280, 6400)

    def price_list(self, valgrind, say):
        """The page of prices, as Markdown. What a policy adds to the same request on a route without it."""
        running = self.start()
        differences = {name: [] for name in self.chosen}
        try:
            for number in range(self.bench.options.rounds):
                for name in self.chosen:
                    policy = POLICIES[name]
                    # Beside each other, so that a slow phase of the machine meets both.
                    runs = [self.run(running, route, name, policy)["cpu_us"] for route in ("plain", name)]
                    differences[name].append(runs[1] - runs[0])
                    say(f"  round {number + 1}: {name}: {runs[0]:.2f} µs without, {runs[1]:.2f} with")
        finally:
            running.stop()
        counted = {}
        plain = {}
        for name in self.chosen if gateways.tool("valgrind") else ():
            say(f"  instructions: {name}")
            policy = POLICIES[name]
            same = (tuple(policy.headers), policy.path, policy.body)
            if same not in plain:
                plain[same] = self.instructions(valgrind, "plain", policy)
            counted[name] = self.instructions(valgrind, name, policy) - plain[same]
        return page(differences, counted, self.chosen)

    def meter(self, valgrind, say):
        """Whether the meter's sum is what the policies cost outside, and what the meter costs itself."""
        running = {every: self.start(price_every=every) for every in (0, 128)}
        rounds = []
        try:
            for number in range(self.bench.options.rounds):
                one = {}
                for every in (0, 128) if number % 2 else (128, 0):
                    for route in ("bare", *METERED):
                        run = self.run(running[every], route, f"{every}-{route}", METERED_REQUEST, PIPELINED)
                        one[every, route] = run["cpu_us"]
                rounds.append(one)
                say(f"  round {number + 1}: " + ", ".join(f"{key}: {us:.2f} µs" for key, us in one.items()))
            inside = {route: metered_us(running[128].status, route) for route in METERED}
        finally:
            for one in running.values():
                one.stop()
        self.print_meter(rounds, inside)
        if gateways.tool("valgrind"):
            counts = [measure.counted_by_valgrind(lambda every=every: self.start(valgrind, every),
                                                  measure.batches(self.request("more", METERED_REQUEST)), 1280, 6400)
                      for every in (0, 128)]
            print(f"\nUser instructions without and with the meter, {len(METERED['more'])} policies: {counts[0]:,.0f} and "
                  f"{counts[1]:,.0f}: {100 * (counts[1] / counts[0] - 1):+.2f} %.")

    @staticmethod
    def print_meter(rounds, inside):
        def ratios(route):
            return [{"ratio": 100 * (one[128, route] / one[0, route] - 1)} for one in rounds]

        print("\n### The meter against the outside\n\n"
              "| policies | outside: with and without them, µs | inside: sum of the meter, µs | inside / outside "
              "| CPU with the meter against without, % |\n|---|--:|--:|--:|--:|")
        what = {"same": "that leave messages as they are", "more": "that add to messages", "large": "that compresses answers"}
        print(f"| none | | | | {measure.spread(ratios('bare'), 'ratio', '{:+.1f}')} |")
        for route, names in METERED.items():
            differences = [{"us": one[128, route] - one[128, "bare"]} for one in rounds]
            share = inside[route] / measure.middle(differences, "us")
            print(f"| {len(names)} {what[route]} | {measure.spread(differences, 'us', '{:.2f}')} | {inside[route]:.2f} "
                  f"| {share:.2f} | {measure.spread(ratios(route), 'ratio', '{:+.1f}')} |")


def metered_us(status, route):
    """What the meter says that the policies of a route cost an exchange."""
    report = measure.status_json(status, "/policies")
    own = next(one for one in report["routes"] if one["route"] == route)
    policies = [one for one in own["policies"] if one["policy"] != "mocking"]
    return sum(one["cpu_ns_per_call"] * one["calls"] for one in policies) / own["exchanges"] / 1000


def page(differences, counted, names):
    lines = ["| plugin | instructions | µs, median (lowest–highest) | |", "|---|--:|--:|---|"]
    for name in names:
        values = differences[name]
        micro = f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})" if values else "–"
        count = f"{counted[name]:,.0f}" if name in counted else "–"
        why = POLICIES[name].why if counted.get(name, 0) > EXPLAINED_ABOVE else ""
        lines.append(f"| `{name}` | {count} | {micro} | {why} |")
    missing = "; ".join(f"`{name}`, {why}" for name, why in ELSEWHERE.items())
    return "\n".join([*lines, "", f"Not in the table: {missing}.", ""])


HEAD = """# What each policy costs

What a plugin adds to the same request on a route without it: instructions in user space, and processor time of the
gateway, kernel included. Plugins that answer by themselves, as `mocking` and `redirect`, spare the way to the upstream
and cost less than nothing. The options are typical ones and stand, with the requests, in `bench/compare/policies.py`.

Written by `bench/compare/run --modes plugins --page docs/reference/prices.md`. Instructions repeat to a few per cent
anywhere; times belong to the machine and its day, and are left out with `--rounds 0`. Of what costs less than a microsecond
they say nothing, as a policy more also makes the gateway wait less for a backend that shares its processor with the load:
there the instructions tell. `/policies` on the status address tells the prices of your own traffic.

"""


def write_page(path, machine, rows):
    with open(path, "w", encoding="utf-8") as out:
        out.write(f"{HEAD}{machine}\n\n{rows}")

