"""Writes events.json: an event file that TensorBoard's own library has written, in hex, and what is
in it.

Usage: python make_events.py    (needs tensorboard; the tests need neither)
"""

import io
import json
import pathlib

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

start = 1700000000.25
values = [
    ["train/loss", 1, 2.3025851249694824],
    ["train/loss", 2, -1.5e-30],
    ["test/accuracy", 300, 0.9699000120162964],
    ["a tag with ü, of more than 127 bytes: " + 100 * "x", 2**40, 3.4028234663852886e38],
    ["nothing", 0, 0.0],
]
file = io.BytesIO()
writer = RecordWriter(file)
events = [
    Event(wall_time=start, file_version="brain.Event:2"),
    Event(wall_time=start, step=30, session_log=SessionLog(status=SessionLog.START)),
]
for k, (tag, step, value) in enumerate(values):
    summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
    events.append(Event(wall_time=start + k, step=step, summary=summary))
for event in events:
    writer.write(event.SerializeToString())
result = {"start": start, "start step": 30, "values": values, "hex": file.getvalue().hex()}
path = pathlib.Path(__file__).parent / "events.json"
path.write_text(json.dumps(result, indent=1) + "\n")
