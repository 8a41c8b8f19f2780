"""One run of a tool, as figures by name: rates a second, times in seconds."""

import csv
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
TIME = r"([\d.]+) ?(ns|us|µs|ms|s)\b"
# JMeter's first answers wait for Java to compile it.
JAVA_WARMS_UP_S = 2


class Failed(Exception):
    pass


def seconds(pair):
    return float(pair[0]) * UNITS[pair[1]]


def run(command, cpu):
    """Runs a program on a processor. Returns what it printed, and its processor time in seconds."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(["taskset", "-c", str(cpu), *map(str, command)], stdout=out, stderr=err)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        text = out.read()
        if process.returncode != 0:
            raise Failed(f"{Path(str(command[0])).name}: {(err.read() or text).strip()[-400:]}")
    return text, used.ru_utime + used.ru_stime


def found(pattern, text):
    match = re.search(pattern, text)
    if match is None:
        raise Failed(f"no {pattern!r} in: {text[-400:]}")
    return match.groups()


def wrk(program, url, cpu, clients, length_s):
    text, cpu_s = run([program, "--latency", "-t1", f"-c{clients}", f"-d{length_s}s", url], cpu)
    requests = int(found(r"(\d+) requests in", text)[0])
    return {
        "requests/s": float(found(r"Requests/sec:\s+([\d.]+)", text)[0]),
        "requests per processor second": requests / cpu_s,
        **{f"p{share}": seconds(found(rf"\n\s+{share}%\s+{TIME}", text)) for share in (50, 90, 99)},
    }


def h2load(program, url, cpu, clients, streams, length_s, per_second=None):
    # Its rate is that of each client.
    pace = [] if per_second is None else [f"--rps={per_second // clients}"]
    text, cpu_s = run([program, "-t1", f"-c{clients}", f"-m{streams}", f"-D{length_s}", *pace, url], cpu)
    done = int(found(r"(\d+) done", text)[0])
    if int(found(r"(\d+) 2xx", text)[0]) < done:
        raise Failed("h2load: not all answers are 2xx")
    return {
        "requests/s": float(found(r"([\d.]+) req/s", text)[0]),
        "requests per processor second": done / cpu_s,
        "mean": seconds(found(rf"time for request:\s+\S+\s+\S+\s+{TIME}", text)),
    }


def websockets(python, url, cpu, clients, per_second, length_s, size):
    text, _ = run([python, HERE / "echo.py", url, clients, per_second, length_s, size], cpu)
    return json.loads(text)


def oha(program, url, cpu, clients, length_s, per_second=None):
    pace = [] if per_second is None else ["-q", per_second]
    text, cpu_s = run([program, "--no-tui", "--output-format", "json", "-c", clients, "-z", f"{length_s}s", *pace, "-w",
                       url], cpu)
    result = json.loads(text)
    answers = result["statusCodeDistribution"]
    if set(answers) != {"200"} or result["errorDistribution"]:
        raise Failed(f"oha: not all answers are 200: {answers}, {result['errorDistribution']}")
    latency = result["latencyPercentiles"]
    return {"requests/s": result["summary"]["requestsPerSec"], "requests per processor second": answers["200"] / cpu_s,
            "mean": result["summary"]["average"], **{name: latency[name] for name in ("p50", "p90", "p99")}}


def ghz(program, port, cpu, connections, calls, length_s, per_second=None):
    pace = [] if per_second is None else ["--rps", per_second]
    text, cpu_s = run([program, "--insecure", "--proto", HERE / "echo.proto", "--call", "echo.Echo/Say", "-d",
                       '{"text": "hello"}', "-c", calls, "--connections", connections, "-z", f"{length_s}s",
                       "--duration-stop", "wait", *pace, "-O", "json", f"127.0.0.1:{port}"], cpu)
    result = json.loads(text)
    if set(result["statusCodeDistribution"]) != {"OK"}:
        raise Failed(f"ghz: not all calls succeeded: {result['statusCodeDistribution']}")
    latency = {one["percentage"]: one["latency"] / 1e9 for one in result["latencyDistribution"]}
    return {"requests/s": result["rps"], "requests per processor second": result["count"] / cpu_s,
            "mean": result["average"] / 1e9, **{f"p{share}": latency[share] for share in (50, 90, 99)}}


def k6(program, url, cpu, clients, length_s, per_second=None):
    how = ["--vus", clients, "--duration", f"{length_s}s", HERE / "closed.js"]
    if per_second is not None:
        how = ["--env", f"RATE={per_second}", "--env", f"DURATION={length_s}s", "--env", f"CLIENTS={clients}",
               HERE / "open.js"]
    with tempfile.TemporaryDirectory() as folder:
        summary = Path(folder) / "summary.json"
        run([program, "run", "-q", "--no-usage-report", "--env", f"URL={url}", "--summary-trend-stats",
             "avg,med,p(90),p(99)", "--summary-export", summary, *how], cpu)
        metrics = json.loads(summary.read_text())["metrics"]
    took = metrics["http_req_duration"]
    return {"requests/s": metrics["http_reqs"]["rate"], "mean": took["avg"] / 1e3, "p50": took["med"] / 1e3,
            "p90": took["p(90)"] / 1e3, "p99": took["p(99)"] / 1e3}


def jmeter(starter, port, cpu, clients, length_s):
    with tempfile.TemporaryDirectory() as folder:
        samples = Path(folder) / "samples.jtl"
        run(["java", "-jar", starter, "-n", "-t", HERE / "plan.jmx", "-l", samples, "-j", Path(folder) / "jmeter.log",
             f"-Jthreads={clients}", f"-Jseconds={length_s}", f"-Jport={port}",
             "-Jjmeter.save.saveservice.output_format=csv"], cpu)
        with open(samples, newline="") as file:
            rows = [(int(row["timeStamp"]), int(row["elapsed"]), row["success"]) for row in csv.DictReader(file)]
    if not rows:
        raise Failed("JMeter: no samples")
    if any(success != "true" for _, _, success in rows):
        raise Failed("JMeter: not all samples succeeded")
    # Of what began after Java was warm and all threads had started, up to when the first of them stops.
    start = min(begun for begun, _, _ in rows) + JAVA_WARMS_UP_S * 1000
    end = max(begun for begun, _, _ in rows) - 100
    took = sorted(elapsed for begun, elapsed, _ in rows if start <= begun < end)
    return {"requests/s": len(took) * 1e3 / (end - start), "mean": sum(took) / len(took) / 1e3,
            "p50": took[len(took) // 2] / 1e3, "p99": took[len(took) * 99 // 100] / 1e3}


class Weir:
    """The lab's own engine: `weir load`, and `weir bench import` for JMeter's plans."""

    def __init__(self, program):
        self.program = program

    def load(self, cpu, *options):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "result.json"
            text, cpu_s = run([self.program, "load", "-q", "--json", file, *options], cpu)
            result = json.loads(file.read_text())
        total = result["total"]
        bad = sum(total["errors"].values()) + total["missed"] + total["unexpected"]
        if bad:
            raise Failed(f"weir load: {bad} of {total['due']} went wrong")
        # The second column: from when a request was sent, as the others count.
        table = {name: seconds(match) for name, match in
                 ((name, found(rf"\n\s+{label}\s+{TIME}\s+{TIME}", text)[2:]) for name, label in
                  (("mean", "mean"), ("p50", "50 %"), ("p90", "90 %"), ("p99", "99 %")))}
        return {"requests/s": total["completed"] * 1e9 / result["measured_ns"], "messages": total["completed"],
                "requests per processor second": total["completed"] / cpu_s, **table}

    def plan(self, cpu, port, clients, length_s):
        """The plan that JMeter runs."""
        lab = [self.program] if Path(self.program).name == "weir-bench" else [self.program, "bench"]
        command = [*lab, "import", HERE / "plan.jmx", f"-Jthreads={clients}", f"-Jseconds={length_s}", f"-Jport={port}"]
        text, _ = run(command, cpu)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            # What JMeter's samples are counted over: after the start of all threads, and of Java.
            plan = json.loads(text)
            plan["warm_up_ms"] = JAVA_WARMS_UP_S * 1000
            plan["stop"]["duration_ms"] -= JAVA_WARMS_UP_S * 1000
            json.dump(plan, file)
            file.flush()
            return self.load(cpu, "--plan", file.name)
