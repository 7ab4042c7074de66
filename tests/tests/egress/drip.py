"""Reads without end until it is cut, then tries until it may reach the outside again."""
import time, urllib.request

drip = urllib.request.urlopen("http://ok.example.org/drip", timeout=60)
try:
    while drip.read(1):
        pass
except Exception as error:
    print("cut:", error, flush=True)
while True:
    try:
        print(urllib.request.urlopen("http://ok.example.org/again", timeout=60).read().decode(), flush=True)
        break
    except Exception as error:
        print("not yet:", error, flush=True)
        time.sleep(0.2)
