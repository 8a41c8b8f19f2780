"""What is measured: load from wrk, processor time and memory from /proc, instructions from perf or valgrind."""

import json
import os
import re
import selectors
import signal
import socket
import statistics
import subprocess
import threading
import time
from pathlib import Path

from gateways import tool

TICK = os.sysconf("SC_CLK_TCK")


def family(pid):
    """A process and all its descendants."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
            except (OSError, IndexError):
                continue
    found, queue = [], [pid]
    while queue:
        found.append(queue.pop())
        queue.extend(parents.get(found[-1], []))
    return found


def processor_seconds(pid):
    """User and system time used so far by a process, its threads and its children."""
    user = system = 0
    for one in family(pid):
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        user, system = user + int(fields[11]), system + int(fields[12])
    return user / TICK, system / TICK


def scheduled_seconds(pid):
    """The sum of both to the nanosecond, as the scheduler counts it; of the threads that there are."""
    total = 0
    for one in family(pid):
        for thread in Path(f"/proc/{one}/task").glob("*/schedstat"):
            try:
                total += int(thread.read_text().split()[0])
            except OSError:
                continue
    return total / 1e9


def resident_bytes(pid):
    """Resident memory of a process and its children."""
    total = 0
    for one in family(pid):
        try:
            text = Path(f"/proc/{one}/status").read_text()
        except OSError:
            continue
        found = re.search(r"^VmRSS:\s+(\d+) kB", text, re.M)
        total += int(found.group(1)) * 1024 if found else 0
    return total


def has_counters():
    """Whether this machine counts instructions for us."""
    if tool("perf") is None:
        return False
    done = subprocess.run(["perf", "stat", "-x,", "-e", "instructions:u", "true"], capture_output=True, text=True,
                          check=False)
    return done.returncode == 0 and "<not" not in done.stderr


def instructions(pid, seconds):
    """Starts counting the instructions of a process and its children; returns a function that gives user and kernel."""
    pids = ",".join(map(str, family(pid)))
    perf = subprocess.Popen(["perf", "stat", "-x,", "-e", "instructions:u,instructions:k", "-p", pids, "sleep",
                             str(seconds)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def finish():
        lines = perf.communicate()[1].splitlines()
        counts = [int(line.split(",")[0]) for line in lines if line.split(",")[0].isdigit()]
        return counts if len(counts) == 2 else None
    return finish


def wrk(url, connections, seconds, cpu, script=None):
    """One run. Returns requests, requests a second, and errors."""
    command = ["taskset", "-c", str(cpu), tool("wrk"), "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s"]
    if script:
        command += ["-s", script]
    text = subprocess.run([*command, url], capture_output=True, text=True, check=True).stdout
    requests = int(re.search(r"(\d+) requests in", text).group(1))
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", text).group(1))
    errors = sum(map(int, re.findall(r"(?:connect|read|write|timeout) (\d+)", text)))
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    return {"requests": requests, "rate": rate, "errors": errors + (int(bad.group(1)) if bad else 0)}


def h2load(url, cpu, *how):
    """One run, of HTTP/2 unless told otherwise. Returns requests, requests a second, and errors."""
    text = subprocess.run(["taskset", "-c", str(cpu), tool("h2load"), "-t1", *how, url], capture_output=True, text=True,
                          check=True).stdout
    rate = float(re.search(r"finished in [\d.]+m?s, ([\d.]+) req/s", text).group(1))
    done, good = (int(re.search(rf"(\d+) {word}", text).group(1)) for word in ("done", "2xx"))
    failed, errored = (int(re.search(rf"(\d+) {word}", text).group(1)) for word in ("failed", "errored"))
    return {"requests": done, "rate": rate, "errors": max(failed + errored, done - good)}


def s_time(port, seconds, cpu, how, clients=4):
    """One run of connections with one request each, `-new` with a full handshake or `-reuse` with one session."""
    command = ["taskset", "-c", str(cpu), "openssl", "s_time", "-connect", f"127.0.0.1:{port}", how, "-www", "/fixed",
               "-time", str(seconds)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
               for _ in range(clients)]
    texts = [one.communicate()[0] for one in running]
    counts = [re.findall(r"(\d+) connections in (\d+) real seconds", text) for text in texts]
    requests = sum(int(count[-1][0]) for count in counts if count)
    rate = sum(int(count[-1][0]) / max(int(count[-1][1]), 1) for count in counts if count)
    return {"requests": requests, "rate": rate, "errors": sum(one.returncode != 0 for one in running)}


def sample(gateway, path, connections, seconds, cpu, script=None, count_instructions=False):
    """One run of wrk with what it cost the gateway."""
    url = f"http://127.0.0.1:{gateway.port}{path}"
    seconds_counted = seconds if count_instructions else None
    return cost(gateway, lambda _: wrk(url, connections, seconds, cpu, script), seconds_counted)


def cost(gateway, load, seconds_counted=None):
    """One run of `load(gateway)` with what it cost the gateway; its instructions too where they can be counted."""
    pid = gateway.process.pid
    count = instructions(pid, seconds_counted) if seconds_counted else None
    (user, system), scheduled = processor_seconds(pid), scheduled_seconds(pid)
    run = load(gateway)
    scheduled = scheduled_seconds(pid) - scheduled
    user, system = (after - before for after, before in zip(processor_seconds(pid), (user, system)))
    requests = max(run["requests"], 1)
    run.update(user_us=user * 1e6 / requests, system_us=system * 1e6 / requests,
               cpu_us=scheduled * 1e6 / requests, rss=resident_bytes(pid))
    if count and (counts := count()):
        run.update(user_kinstr=counts[0] / requests / 1e3, kernel_kinstr=counts[1] / requests / 1e3)
    return run


def middle(samples, key):
    return statistics.median(sample[key] for sample in samples)


def spread(samples, key, form="{:.1f}"):
    """Median with the lowest and the highest."""
    values = [sample[key] for sample in samples if key in sample]
    if not values:
        return "–"
    return f"{form.format(statistics.median(values))} ({form.format(min(values))}–{form.format(max(values))})"


def ratio(samples, base, key):
    """The median over rounds of one gateway's figure against another's of the same round."""
    pairs = [own[key] / other[key] for own, other in zip(samples, base) if other.get(key) and key in own]
    return statistics.median(pairs) if pairs else None


class Batch:
    """Keep-alive connections that all send, then all receive: a fixed number of requests, for counting tools."""

    def __init__(self, port, connections, request):
        self.request, self.sockets = request, []
        self.selector = selectors.DefaultSelector()
        for _ in range(connections):
            one = socket.create_connection(("127.0.0.1", port), timeout=60)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sockets.append(one)
            self.selector.register(one, selectors.EVENT_READ)

    def send(self, rounds):
        for _ in range(rounds):
            for one in self.sockets:
                one.sendall(self.request)
            waiting = dict.fromkeys(self.sockets, b"")
            while waiting:
                for key, _ in self.selector.select(60):
                    part = key.fileobj.recv(1 << 20)
                    if not part:
                        raise RuntimeError("a connection was closed")
                    waiting[key.fileobj] = waiting.get(key.fileobj, b"") + part
                    if is_whole(waiting[key.fileobj]):
                        del waiting[key.fileobj]

    def close(self):
        for one in self.sockets:
            one.close()


def is_whole(response):
    head, end, body = response.partition(b"\r\n\r\n")
    if not end:
        return False
    length = re.search(rb"(?i)content-length: *(\d+)", head)
    return len(body) >= int(length.group(1)) if length else body.endswith(b"0\r\n\r\n")


def batches(request, connections=64):
    """Load for `counted_by_valgrind`: this request on connections that all send, then all receive."""
    def load(port, requests):
        batch = Batch(port, connections, request)
        batch.send(requests // connections)
        batch.close()
    return load


def counted_by_valgrind(start, load, few=2560, many=15360):
    """User instructions a request, from two runs under cachegrind that differ only in the number of requests that
    `load(port, requests)` sends."""
    totals = []
    for requests in (few, many):
        gateway = start()
        try:
            load(gateway.port, requests)
        finally:
            gateway.stop()
        found = re.findall(r"I\s+refs:\s+([\d,]+)", gateway.written())
        if not found:
            raise RuntimeError(f"valgrind said nothing:\n{gateway.written()}")
        totals.append(sum(int(count.replace(",", "")) for count in found))
    return (totals[1] - totals[0]) / (many - few)


def idle_memory(gateway, connections, sources=4, secured=lambda connection: connection):
    """Resident bytes that each idle keep-alive connection adds, after one request on each."""
    request = b"GET / HTTP/1.1\r\nHost: t\r\n\r\n"
    warm = [secured(socket.create_connection(("127.0.0.1", gateway.port))) for _ in range(64)]
    for one in warm * 8:
        one.sendall(request)
        read_response(one)
    before = resident_bytes(gateway.process.pid)
    idle = []
    for number in range(connections):
        source = (f"127.0.0.{1 + number % sources}", 0)
        one = secured(socket.create_connection(("127.0.0.1", gateway.port), timeout=30, source_address=source))
        one.sendall(request)
        read_response(one)
        idle.append(one)
    after = resident_bytes(gateway.process.pid)
    for one in warm + idle:
        one.close()
    return (after - before) / connections


def reload_seconds(gateway, config):
    """How long weir takes from a signal until every worker serves a changed file, and how many of the requests sent
    meanwhile failed."""
    text = config.read_text()
    status = int(re.search(r'^status: "127\.0\.0\.1:(\d+)"', text, re.M).group(1))
    failed, done = [], threading.Event()

    def ask():
        one = socket.create_connection(("127.0.0.1", gateway.port), timeout=30)
        while not done.is_set():
            one.sendall(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n")
            try:
                if not read_response(one).startswith(b"HTTP/1.1 200"):
                    failed.append("status")
            except (OSError, RuntimeError):
                failed.append("connection")
                one = socket.create_connection(("127.0.0.1", gateway.port), timeout=30)
        one.close()

    before = revision(status)
    asking = threading.Thread(target=ask)
    asking.start()
    next_file = config.with_suffix(".next")
    next_file.write_text(text.replace("/service/1/", f"/service/changed-{before}/", 1))
    next_file.rename(config)
    start = time.monotonic()
    os.kill(gateway.process.pid, signal.SIGHUP)
    while revision(status) == before and time.monotonic() < start + 60:
        time.sleep(0.002)
    seconds = time.monotonic() - start
    done.set()
    asking.join()
    return seconds, len(failed)


def revision(status):
    return status_json(status, "/status")["revision"]


def status_json(status, path):
    """What weir says on its status port."""
    one = socket.create_connection(("127.0.0.1", status), timeout=30)
    one.sendall(f"GET {path} HTTP/1.1\r\nHost: t\r\n\r\n".encode())
    body = read_response(one).partition(b"\r\n\r\n")[2]
    one.close()
    return json.loads(body)


def read_response(one):
    response = b""
    while not is_whole(response):
        part = one.recv(65536)
        if not part:
            raise RuntimeError("a connection was closed")
        response += part
    return response


def settle(pid, seconds=0.5):
    """Gives a gateway that has just been left by its clients time to see it."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        before = processor_seconds(pid)
        time.sleep(seconds)
        if processor_seconds(pid) == before:
            return
