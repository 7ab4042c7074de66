"""Trains a small network on the UCI handwritten digits, and loses nothing when interrupted.

The same idea as the Rust program beside it, as a member would write it: plain numpy, a checkpoint
after each epoch and on SIGTERM, resumed with the same bits.

Environment: EPOCHS (20), EPOCH_SECONDS (0: as fast as it goes).
"""

import gzip
import json
import os
import signal
import sys
import time

import numpy as np

HIDDEN, CLASSES, BATCH, RATE, DECAY, SEED = 32, 10, 8, 0.3, 0.2, 20

EPOCHS = int(os.environ.get("EPOCHS", "20"))
EPOCH_SECONDS = float(os.environ.get("EPOCH_SECONDS", "0"))
RUN = os.environ.get("GPUNION_RUN_DIR", "/run/gpunion")

must_save = False


def on_sigterm(_signal, _frame):
    """Only notes it: a mini-batch is never cut in two."""
    global must_save
    must_save = True


def read_digits():
    with gzip.open("digits.csv.gz", "rt") as file:
        rows = np.loadtxt(file, delimiter=",")
    pixels, classes = rows[:, :64] / 16.0, rows[:, 64].astype(int)
    held_out = np.arange(len(rows)) % 5 == 4
    return pixels[~held_out], classes[~held_out], pixels[held_out], classes[held_out]


class Training:
    """All that later steps depend on; so a checkpoint is the same training, bit by bit."""

    def __init__(self, count):
        self.random = np.random.Generator(np.random.PCG64(SEED))
        wide = lambda inputs, outputs: self.random.uniform(-1, 1, (inputs, outputs)) * np.sqrt(6 / inputs)
        self.w1, self.b1 = wide(64, HIDDEN), np.zeros(HIDDEN)
        self.w2, self.b2 = wide(HIDDEN, CLASSES), np.zeros(CLASSES)
        self.epoch, self.position, self.loss = 0, 0, 0.0
        self.order = np.arange(count)

    def save(self):
        """Beside, synced, renamed: a crash leaves the old one or the new one."""
        state = self.random.bit_generator.state
        numbers = json.dumps({
            "epoch": self.epoch, "position": self.position, "loss": self.loss.hex(),
            "random": state,
        })
        with open("checkpoint.tmp", "wb") as file:
            np.savez(file, numbers=np.array(numbers), order=self.order,
                     w1=self.w1, b1=self.b1, w2=self.w2, b2=self.b2)
            file.flush()
            os.fsync(file.fileno())
        os.replace("checkpoint.tmp", "checkpoint.npz")
        folder = os.open(".", os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    def load(self):
        if not os.path.exists("checkpoint.npz"):
            return False
        with np.load("checkpoint.npz", allow_pickle=False) as saved:
            numbers = json.loads(str(saved["numbers"]))
            self.order = saved["order"]
            self.w1, self.b1, self.w2, self.b2 = saved["w1"], saved["b1"], saved["w2"], saved["b2"]
        self.epoch, self.position = numbers["epoch"], numbers["position"]
        self.loss = float.fromhex(numbers["loss"])
        self.random.bit_generator.state = numbers["random"]
        return True

    def probabilities(self, pixels):
        hidden = np.maximum(pixels @ self.w1 + self.b1, 0)
        out = hidden @ self.w2 + self.b2
        out = np.exp(out - out.max(axis=1, keepdims=True))
        return hidden, out / out.sum(axis=1, keepdims=True)

    def learn(self, pixels, classes):
        hidden, out = self.probabilities(pixels)
        rows = np.arange(len(classes))
        self.loss += float(-np.log(out[rows, classes]).sum())
        out[rows, classes] -= 1
        out /= len(classes)
        back = (out @ self.w2.T) * (hidden > 0)
        rate = RATE / (1 + DECAY * self.epoch)
        self.w2 -= rate * hidden.T @ out
        self.b2 -= rate * out.sum(axis=0)
        self.w1 -= rate * pixels.T @ back
        self.b1 -= rate * back.sum(axis=0)

    def count_right(self, pixels, classes):
        return int((self.probabilities(pixels)[1].argmax(axis=1) == classes).sum())


def say_saved():
    """Tells GPUnion; anywhere else there is nobody to tell."""
    if os.path.isdir(RUN):
        open(os.path.join(RUN, "saved"), "w").close()


def save_when_asked(training):
    global must_save
    if not must_save:
        return
    must_save = False
    training.save()
    print(f"\nSIGTERM: saved in epoch {training.epoch + 1}, after digit {training.position}", flush=True)
    say_saved()
    if not os.path.isdir(RUN):
        sys.exit(143)
    # A job that must leave goes on until it is ended from outside.


def run_epoch(training, pixels, classes):
    if training.position == 0:
        training.random.shuffle(training.order)
        training.loss = 0.0
    batches = -(-len(classes) // BATCH)
    while training.position < len(classes):
        batch = training.order[training.position:training.position + BATCH]
        training.learn(pixels[batch], classes[batch])
        training.position += len(batch)
        done = -(-training.position // BATCH)
        if done * 24 // batches != (done - 1) * 24 // batches:
            bar = "#" * (done * 24 // batches)
            print(f"\repoch {training.epoch + 1}/{EPOCHS} [{bar:.<24}] {done * 100 // batches:3} %", end="", flush=True)
        time.sleep(EPOCH_SECONDS / batches)
        save_when_asked(training)
    training.epoch, training.position = training.epoch + 1, 0
    training.save()


def write_beside(name, data):
    with open(name + ".tmp", "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(name + ".tmp", name)


def main():
    signal.signal(signal.SIGTERM, on_sigterm)
    pixels, classes, held_pixels, held_classes = read_digits()
    training = Training(len(classes))
    if training.load():
        print(f"resuming in epoch {training.epoch + 1}, after digit {training.position}", flush=True)
    else:
        print(f"learning from {len(classes)} digits", flush=True)
    while training.epoch < EPOCHS:
        run_epoch(training, pixels, classes)
        right = training.count_right(held_pixels, held_classes)
        print(f"\repoch {training.epoch}/{EPOCHS} loss {training.loss / len(classes):.4f} "
              f"held-out {100 * right / len(held_classes):.1f} %{'':24}", flush=True)
        say_saved()
    right = training.count_right(held_pixels, held_classes)
    weights = np.concatenate([part.ravel() for part in (training.w1, training.b1, training.w2, training.b2)])
    write_beside("weights.bin", weights.astype("<f8").tobytes())
    result = {"accuracy": right / len(held_classes), "epochs": training.epoch, "held_out": len(held_classes),
              "right": right}
    write_beside("result.json", (json.dumps(result) + "\n").encode())
    print(f"done: reads {100 * right / len(held_classes):.1f} % of {len(held_classes)} held-out digits right")


if __name__ == "__main__":
    main()
