"""Tries to reach what it may and what it may not, and writes down what came of it."""
import json, os, socket, ssl, urllib.request

report = {}
context = ssl.create_default_context(cafile="root.pem")


def get(url):
    try:
        opener = {"context": context} if url.startswith("https") else {}
        report[url] = urllib.request.urlopen(url, timeout=60, **opener).read().decode()
    except Exception as error:
        report[url] = str(error)


def attempt(name, work):
    try:
        report[name] = str(work())
    except Exception as error:
        report[name] = f"{type(error).__name__}: {error}"


def past_init():
    """The program's own connection to the socket that init uses."""
    own = socket.socket(socket.AF_UNIX)
    own.settimeout(60)
    own.connect("/run/gpunion-egress/proxy.sock")
    own.sendall(b"CONNECT ok.example.org:80 HTTP/1.1\r\n\r\n")
    return own.recv(100)


for url in json.loads(os.environ["URLS"]):
    get(url)
attempt("interfaces", lambda: sorted(os.listdir("/sys/class/net")))
attempt("direct", lambda: socket.create_connection(("11.0.0.5", 80), 60))
attempt("proxy", lambda: socket.create_connection(("127.0.0.1", 20080), 60) and "listens")
attempt("past init", past_init)
report["mount"] = os.path.exists("/run/gpunion-egress")
report["variables"] = sorted(name for name in os.environ if name.lower().endswith("_proxy"))
with open("report.json", "w") as file:
    json.dump(report, file)
