"""A small SOAP service for tests: `soap_server.py PORT` serves the countries it knows, and a fault for others."""

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from xml.etree import ElementTree
from xml.sax.saxutils import escape

SOAP = "http://schemas.xmlsoap.org/soap/envelope/"
COUNTRIES = "urn:countries"
KNOWN = {"Spain": (46704314, "Madrid", "EUR"), "<Åland>": (30000, "Mariehamn & Co", "EUR")}


def answer(document):
    body = ElementTree.fromstring(document).find(f"{{{SOAP}}}Body")
    name = body.find(f"{{{COUNTRIES}}}getCountryRequest/{{{COUNTRIES}}}name").text
    if name not in KNOWN:
        reason = f"no country {escape(name)}"
        fault = f'<faultcode>s:Client</faultcode><faultstring xml:lang="en">{reason}</faultstring>'
        return 500, f"<s:Fault>{fault}</s:Fault>"
    population, capital, currency = KNOWN[name]
    members = f"<c:name>{escape(name)}</c:name><c:population>{population}</c:population>"
    members += f"<c:capital>{escape(capital)}</c:capital><c:currency>{currency}</c:currency>"
    return 200, f'<c:getCountryResponse xmlns:c="{COUNTRIES}"><c:country>{members}</c:country></c:getCountryResponse>'


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        document = self.rfile.read(int(self.headers["Content-Length"]))
        is_xml = self.headers["Content-Type"] == "text/xml"
        status, body = answer(document) if is_xml else (415, "")
        content = f'<?xml version="1.0"?><s:Envelope xmlns:s="{SOAP}"><s:Body>{body}</s:Body></s:Envelope>'.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/xml; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
