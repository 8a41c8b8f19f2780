"""One end of a cable between two network namespaces that delays every packet.

Packets of a TUN device go to standard output, each after its length and the time at which it is to arrive; those from standard input
go to the device at their time. Needs no support of the kernel for delays (netem).
"""

import fcntl
import os
import struct
import sys
import threading
import time

TUNSETIFF = 0x400454CA
IFF_TUN = 0x0001
IFF_NO_PI = 0x1000

device, delay_s = sys.argv[1], float(sys.argv[2]) / 1000
tun = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TUN | IFF_NO_PI))


def leave():
    out = sys.stdout.buffer
    while True:
        packet = os.read(tun, 65536)
        out.write(struct.pack("=Id", len(packet), time.monotonic() + delay_s) + packet)
        out.flush()


threading.Thread(target=leave, daemon=True).start()
while head := sys.stdin.buffer.read(12):
    length, due = struct.unpack("=Id", head)
    packet = sys.stdin.buffer.read(length)
    time.sleep(max(0, due - time.monotonic()))
    os.write(tun, packet)
