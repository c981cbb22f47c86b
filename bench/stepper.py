"""What the comparisons share: stet_step as an object, and the machine in words."""

import json
import os
import pathlib
import platform
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEFAULT_BUILD = ROOT / "build" / "bench"


class Stepper:
    """A running stet_step; see the top of stet_step.cpp for its commands."""

    def __init__(self, program, model, dtype, threads, context=None, seqs=1, chunk=512):
        command = [str(program), "-m", str(model), "--dtype", dtype, "--threads", str(threads), "--seqs", str(seqs)]
        command += ["--chunk", str(chunk)]
        if context:
            command += ["--context", str(context)]
        try:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        except OSError as error:
            raise SystemExit(f"{program}: {error.strerror} (bench/README.md says how to build it)") from None
        self.hello = self._answer()

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"stet_step ended with status {self.process.wait()}")
        return json.loads(line)

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        answer = self._answer()
        if "error" in answer:
            raise SystemExit(f"stet_step: {answer['error']}")
        return answer

    def ms(self, command):
        return self.ask(command)["ms"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def machine():
    """One line: CPU and how many of them this process may use."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
        model = names[0] if names else model
    except OSError:
        pass
    return f"{len(os.sched_getaffinity(0))} cores of {model}, load {os.getloadavg()[0]:.1f}"
