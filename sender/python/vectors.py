"""Checks twoqueue.py with the test vectors of the wire format:

    python3 vectors.py ../../bridge/wire/testdata/vectors

Prints how many vectors there were of each kind. Fails for a kind or a field that it does not know.
"""

import collections
import datetime
import decimal
import json
import pathlib
import sys
import uuid

import pika
from pika.compat import long

import twoqueue

# A sender reads no messages.
FOR_READERS = {"parsed", "malformed", "parsed-record", "malformed-record", "parsed-group", "malformed-group"}


# The known fields of each kind of vector, and the fields in these.
ANY = None
TEXT = {"repeat": ANY, "times": ANY}  # if it is no plain text
CONTENT = {
    "properties": dict.fromkeys((name.replace("_", "-") for name in vars(pika.BasicProperties()) if name != "headers"), TEXT),
    "headers": ANY,  # field() checks them
    "body": TEXT,
}
TO = {"exchange": TEXT, "routing-key": TEXT, "order-key": TEXT, "staged-at": TEXT, "carried": TEXT}
MESSAGE = CONTENT | TO | {"id": TEXT, "numbered-headers": TEXT}
PARSED = CONTENT | TO | {"user-id": TEXT, "restaged": TEXT, "malformed": TEXT}
FIELDS = {
    "message": {"ledger": TEXT, "message": MESSAGE, "staged": CONTENT, "parsed": PARSED},
    "refused": {"message": MESSAGE, "reason": TEXT},
    "parsed": {"staged": CONTENT, "parsed": PARSED},
    "malformed": {"staged": CONTENT, "reason": TEXT},
    "order": {"order-key": TEXT, "staging-queue": TEXT, "ordered-queues": ANY},
    "record": {"ledger": TEXT, "staged": CONTENT, "record": TEXT, "parsed": PARSED},
    "parsed-record": {"ledger": TEXT, "record": TEXT, "parsed": PARSED},
    "malformed-record": {"ledger": TEXT, "record": TEXT, "reason": TEXT},
    "group": {"ledger": TEXT, "records": TEXT, "group": CONTENT, "parsed": PARSED},
    "parsed-group": {"group": CONTENT, "members": PARSED},
    "malformed-group": {"group": CONTENT, "reason": TEXT},
    "row": {
        "database": TEXT, "id": TEXT, "ledger": TEXT, "staged": CONTENT, "clock": TEXT, "published": TEXT, "not-before": TEXT,
        "columns": {"id": {"hex": ANY}, "message": {"hex": ANY}, "recorded_at": TEXT, "stage_at": TEXT},
    },
}


def unknown(value, known):
    """Yields the names of the fields that are not known."""
    if isinstance(value, list):
        for element in value:
            yield from unknown(element, known)
    elif isinstance(value, dict):
        for name, inner in value.items():
            if name not in known:
                yield name
            elif known[name] is not ANY:
                yield from unknown(inner, known[name])


class Unwritable:
    """A value of a type that pika does not write."""


def text(value):
    return value if isinstance(value, str) else value["repeat"] * value["times"]


def field(typed):
    ((kind, value),) = typed.items()
    match kind:
        case "V" | "t" | "I":
            return value
        case "l":
            return long(value)
        case "S":
            return text(value)
        case "x":
            return bytes.fromhex(value)
        case "T":
            return datetime.datetime.fromtimestamp(value, datetime.timezone.utc)
        case "D":
            return decimal.Decimal(value["value"]).scaleb(-value["scale"])
        case "F":
            return {name: field(inner) for name, inner in value.items()}
        case "A":
            return [field(value["repeat"])] * value["times"] if isinstance(value, dict) else [field(inner) for inner in value]
        case "f" | "d":
            return float(value)
        case "b" | "B" | "s" | "u" | "i":
            return Unwritable()
    raise ValueError(f"type {kind} is not known")


def writable(headers):
    return not any(isinstance(value, (Unwritable, float)) for value in headers.values())


def content(v):
    """Returns properties, headers and body."""
    properties = {name.replace("-", "_"): value if isinstance(value, int) else text(value) for name, value in v.get("properties", {}).items()}
    headers = {text(name): field(value) for name, value in v.get("headers", {}).items()}
    headers |= {str(i): None for i in range(v.get("numbered-headers", 0))}
    return properties, headers, bytes.fromhex(v.get("body", ""))


def message(v):
    properties, headers, body = content(v)
    return twoqueue.Message(
        exchange=text(v["exchange"]), routing_key=text(v["routing-key"]), body=body, properties=properties, headers=headers,
        order_key=text(v.get("order-key", "")), carried=v.get("carried", False), id=uuid.UUID(v["id"]),
    )


def staged(v):
    properties, headers, body = content(v)
    return pika.BasicProperties(headers=headers, **properties), body


def encoded(properties):
    return b"".join(properties.encode())


def refused(call):
    try:
        call()
    except (twoqueue.Refused, pika.exceptions.UnsupportedAMQPFieldException):
        return True
    return False


def check(v):
    match v["kind"]:
        case "message":
            m, (want, body) = message(v["message"]), staged(v["staged"])
            stage = lambda: twoqueue.stage(m, v["ledger"], v["message"].get("staged-at"))
            if not writable(m.headers):
                return refused(stage)
            return encoded(stage()) == encoded(want) and m.body == body
        case "refused":
            return refused(lambda: twoqueue.stage(message(v["message"]), uuid.uuid4()))
        case "order":
            key = text(v["order-key"])
            return all(twoqueue.ordered_queue(v["staging-queue"], key, int(n)) == want for n, want in v["ordered-queues"].items())
        case "record":
            properties, body = staged(v["staged"])
            if not writable(properties.headers):
                return refused(lambda: twoqueue.record(properties, body))
            return twoqueue.record(properties, body).hex() == v["record"]
        case "group":
            want, want_body = staged(v["group"])
            properties, body = twoqueue.group(v["ledger"], [bytes.fromhex(record) for record in v["records"]])
            properties.message_id = None  # it has no meaning
            return encoded(properties) == encoded(want) and body == want_body
        case "row":  # its times are tested on a server
            return "staged" not in v or twoqueue.record(*staged(v["staged"])).hex() == v["columns"]["message"]["hex"]
        case kind:
            return kind in FOR_READERS


def main(folder):
    counts, failed = collections.Counter(), False
    for file in sorted(pathlib.Path(folder).glob("*.json")):
        for v in json.loads(file.read_text(encoding="utf-8")):
            counts[v["kind"]] += 1
            strange = list(unknown(v, {"kind": TEXT, "rule": TEXT} | FIELDS.get(v["kind"], {})))
            if strange:
                failed = True
                print(f"FAILED: {file.name}: {v['kind']}: {v.get('rule')}: {', '.join(strange)} is not known")
            elif not check(v):
                failed = True
                print(f"FAILED: {file.name}: {v['kind']}: {v['rule']}")
    for kind, n in sorted(counts.items()):
        print(n, kind, "(for readers)" if kind in FOR_READERS else "")
    if failed or not counts:
        sys.exit("the vectors are not passed")


if __name__ == "__main__":
    main(sys.argv[1])
