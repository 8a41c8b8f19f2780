"""Finds the independent tools, and installs what is missing: Debian packages where this may, the rest into
.cache/agreement, from PyPI, crates.io, the Go module proxy and Maven Central. A tool that cannot be had is None."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent.parent / ".cache" / "agreement"
OHA = "1.15.0"


def say(text):
    print(text, file=sys.stderr, flush=True)


def quietly(command, log, **how):
    """Whether the command succeeded; what it printed is in the log."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / log, "w") as out:
        return subprocess.run(command, stdout=out, stderr=out, check=False, **how).returncode == 0


def debian(program, package):
    """A program that a Debian package brings."""
    if shutil.which(program) is None and shutil.which("apt-get"):
        root = [] if os.geteuid() == 0 else ["sudo", "-n"]
        say(f"installing {package} with apt-get")
        quietly([*root, "apt-get", "-qq", "update"], "apt.log")
        quietly([*root, "apt-get", "-qq", "install", "-y", "--no-install-recommends", package], "apt.log",
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    return shutil.which(program)


def websockets():
    """A Python that has `websockets`."""
    python = CACHE / "python" / "bin" / "python"
    if not python.exists():
        quietly([sys.executable, "-m", "venv", str(CACHE / "python")], "venv.log")
    if not quietly([str(python), "-c", "import websockets.asyncio.client"], "pip.log"):
        say("installing websockets from PyPI")
        quietly([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "websockets>=13,<18"],
                "pip.log")
    return str(python) if quietly([str(python), "-c", "import websockets.asyncio.client"], "pip.log") else None


def of_go(name, package):
    """A program built from the Go module proxy: its version stands in NAME.mod."""
    program = CACHE / "bin" / name
    if not program.exists() and debian("go", "golang-go"):
        say(f"building {name} with Go, for some minutes")
        source = CACHE / name
        source.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / f"{name}.mod", source / "go.mod")
        quietly(["go", "build", "-mod=mod", "-o", str(program), package], f"{name}.log", cwd=source)
    return str(program) if program.exists() else None


def oha():
    """oha, built from crates.io."""
    program = CACHE / "bin" / "oha"
    if not program.exists():
        say("building oha with cargo, for some minutes")
        quietly(["cargo", "install", "-q", "--locked", "--root", str(CACHE), f"oha@{OHA}"], "oha.log")
    return str(program) if program.exists() else None


def jmeter():
    """JMeter's starter in a tree like that of the zip people download, which is not on Maven Central; its parts are."""
    home = CACHE / "jmeter"
    starter = home / "bin" / "ApacheJMeter.jar"
    if starter.exists():
        return str(starter) if debian("java", "openjdk-17-jre-headless") else None
    if not debian("java", "openjdk-17-jre-headless") or not debian("mvn", "maven"):
        return None
    say("installing JMeter from Maven Central")
    done = quietly(["mvn", "-q", "-B", "-f", str(HERE / "jmeter.xml"), "dependency:copy-dependencies",
                    f"-DoutputDirectory={home / 'lib'}"], "jmeter.log")
    if not done:
        return None
    for folder in ("bin", "lib/ext", "lib/junit"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    for jar in (home / "lib").glob("ApacheJMeter_*.jar"):
        if jar.name.startswith("ApacheJMeter_config"):
            with zipfile.ZipFile(jar) as settings:
                settings.extractall(home, [name for name in settings.namelist() if name.startswith("bin/")])
        jar.rename(home / "lib" / "ext" / jar.name)
    # Last: where it is, JMeter is whole.
    next((home / "lib").glob("ApacheJMeter-*.jar")).rename(starter)
    return str(starter)


TOOLS = {
    "wrk": lambda: debian("wrk", "wrk"),
    "h2load": lambda: debian("h2load", "nghttp2-client"),
    "websockets": websockets,
    "oha": oha,
    "k6": lambda: of_go("k6", "go.k6.io/k6"),
    "ghz": lambda: of_go("ghz", "github.com/bojand/ghz/cmd/ghz"),
    "JMeter": jmeter,
}
