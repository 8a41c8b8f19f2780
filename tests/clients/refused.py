"""Sends content that nobody wants, over HTTP/2 with httpx: `refused.py BASE CA` reads lines `PATH BYTES`, and says the status
of each, or what went wrong. The content's length is not announced."""

import ssl
import sys

import httpx


def content(size):
    piece = b"x" * 16384
    while size > 0:
        yield piece[:size]
        size -= len(piece)


base, authority = sys.argv[1:]
verified = ssl.create_default_context(cafile=authority)
with httpx.Client(http2=True, http1=False, verify=verified, trust_env=False, timeout=60) as client:
    for line in sys.stdin:
        path, size = line.split()
        try:
            answer = client.post(base + path, content=content(int(size)))
            print(answer.status_code, flush=True)
        except httpx.HTTPError as error:
            print(f"failed: {error!r}".replace("\n", " "), flush=True)
