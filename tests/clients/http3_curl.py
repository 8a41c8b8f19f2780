"""A client of HTTP/3 by libcurl: see README.md."""

import ctypes
import hashlib
import json
import os
import sys

import pycurl

NAME = "a.test"
HTTP3_OR_ELSE, HTTP3_ONLY = 30, 31
SECONDS = 600
# A piece of the content that is sent, before which its number stands.
PIECE = os.urandom(1 << 16)


class Content:
    """What is sent, made as it is read."""

    def __init__(self, length):
        self.left = length
        self.sum = hashlib.sha256()
        self.number = 0

    def read(self, most):
        self.number += 1
        piece = (self.number.to_bytes(8, "big") + PIECE)[: min(most, self.left)]
        self.left -= len(piece)
        self.sum.update(piece)
        return piece


class Asked:
    """A request, and its response."""

    def __init__(self, port, authority, path, version=HTTP3_ONLY):
        self.sum, self.length, self.start, self.fields = hashlib.sha256(), 0, b"", []
        self.curl = curl = pycurl.Curl()
        curl.setopt(curl.URL, f"https://{NAME}:{port}{path}")
        curl.setopt(curl.RESOLVE, [f"{NAME}:{port}:127.0.0.1"])
        curl.setopt(curl.CAINFO, authority)
        curl.setopt(curl.HTTP_VERSION, version)
        curl.setopt(curl.TIMEOUT, SECONDS)
        curl.setopt(curl.NOSIGNAL, 1)
        curl.setopt(curl.WRITEFUNCTION, self.received)
        curl.setopt(curl.HEADERFUNCTION, lambda line: self.fields.append(line.decode("latin-1").strip()))

    def received(self, piece):
        self.sum.update(piece)
        self.length += len(piece)
        self.start += piece[: 1000 - len(self.start)] if len(self.start) < 1000 else b""

    def send(self, length, announced=True):
        content = Content(length)
        self.curl.setopt(pycurl.POST, 1)
        self.curl.setopt(pycurl.READFUNCTION, content.read)
        if announced:
            self.curl.setopt(pycurl.POSTFIELDSIZE_LARGE, length)
        return content

    def said(self):
        curl = self.curl
        return {
            "status": curl.getinfo(curl.RESPONSE_CODE),
            "version": curl.getinfo(curl.INFO_HTTP_VERSION),
            "length": self.length,
            "sum": self.sum.hexdigest(),
            "body": self.start.decode("latin-1"),
            "fields": self.fields,
        }


def download(port, authority, path):
    asked = Asked(port, authority, path)
    asked.curl.perform()
    return asked.said()


def upload(port, authority, path, length, announced="announced"):
    asked = Asked(port, authority, path)
    content = asked.send(int(length), announced == "announced")
    asked.curl.perform()
    return asked.said() | {"sum": content.sum.hexdigest()}


def objects(port, authority, count):
    multi = pycurl.CurlMulti()
    multi.setopt(pycurl.M_PIPELINING, pycurl.PIPE_MULTIPLEX)
    all_asked = [Asked(port, authority, f"/object/{number}") for number in range(int(count))]
    for asked in all_asked:
        asked.curl.setopt(pycurl.PIPEWAIT, 1)
        multi.add_handle(asked.curl)
    running = len(all_asked)
    while running:
        _, running = multi.perform()
        if running:
            multi.select(1.0)
    return {"bodies": [asked.start.decode() for asked in all_asked]}


def either(port, authority, path):
    """Asks as a client that would like HTTP/3, and takes what there is."""
    asked = Asked(port, authority, path, HTTP3_OR_ELSE)
    asked.curl.perform()
    return asked.said()


def only(port, authority, path):
    """The code of the error, if there is no HTTP/3."""
    asked = Asked(port, authority, path)
    asked.curl.setopt(pycurl.CONNECTTIMEOUT, 5)
    try:
        asked.curl.perform()
        return {"error": 0}
    except pycurl.error as error:
        return {"error": error.args[0]}


class Library:
    """libcurl itself, for options that pycurl does not know."""

    TEXTS = {"URL": 10002, "CAINFO": 10065, "ALTSVC": 10287}
    NUMBERS = {"NOSIGNAL": 99, "TIMEOUT": 13, "HAPPY_EYEBALLS_TIMEOUT_MS": 271, "ALTSVC_CTRL": 286}
    RESOLVE, WRITEFUNCTION, GET_HTTP_VERSION = 10203, 20011, 0x200000 + 46
    WRITE = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)

    def __init__(self):
        # The library that pycurl has loaded.
        with open("/proc/self/maps") as maps:
            path = next(line.split()[-1] for line in maps if "libcurl" in line)
        self.curl = ctypes.CDLL(path)
        self.curl.curl_easy_init.restype = self.curl.curl_slist_append.restype = ctypes.c_void_p
        self.curl.curl_slist_append.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        self.curl.curl_easy_perform.argtypes = self.curl.curl_easy_cleanup.argtypes = [ctypes.c_void_p]

    def ask(self, resolve, **options):
        """The version of the response; the handle is closed, so that what the client keeps is written to its files."""
        handle = ctypes.c_void_p(self.curl.curl_easy_init())
        drop = self.WRITE(lambda _content, size, count, _data: size * count)
        self.curl.curl_easy_setopt(handle, self.WRITEFUNCTION, drop)
        addresses = ctypes.c_void_p(self.curl.curl_slist_append(None, resolve.encode()))
        self.curl.curl_easy_setopt(handle, self.RESOLVE, addresses)
        for name, value in options.items():
            number = self.TEXTS.get(name) or self.NUMBERS[name]
            value = ctypes.c_char_p(value.encode()) if name in self.TEXTS else ctypes.c_long(value)
            assert self.curl.curl_easy_setopt(handle, number, value) == 0, name
        code, version = self.curl.curl_easy_perform(handle), ctypes.c_long()
        assert code == 0, f"libcurl says {code}"
        self.curl.curl_easy_getinfo(handle, self.GET_HTTP_VERSION, ctypes.byref(version))
        self.curl.curl_easy_cleanup(handle)
        return version.value


def told(port, authority, path, file):
    """Asks as curl does by itself, over HTTP/2, and once more as the response to that has told."""
    options = {
        "URL": f"https://{NAME}:{port}{path}",
        "CAINFO": authority,
        "ALTSVC": file,
        # What it is told over HTTP/1.1, HTTP/2 and HTTP/3.
        "ALTSVC_CTRL": 1 << 3 | 1 << 4 | 1 << 5,
        # On a busy machine HTTP/3 may be late: no other protocol is tried meanwhile.
        "HAPPY_EYEBALLS_TIMEOUT_MS": SECONDS * 1000,
        "NOSIGNAL": 1,
        "TIMEOUT": SECONDS,
    }
    library = Library()
    return {"versions": [library.ask(f"{NAME}:{port}:127.0.0.1", **options) for _ in range(2)]}


port, authority, order, *arguments = sys.argv[1:]
orders = {function.__name__: function for function in [download, upload, objects, either, only, told]}
print(json.dumps(orders[order](port, authority, *arguments)))
