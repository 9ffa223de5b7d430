"""Sends messages to RabbitMQ if and only if a PostgreSQL transaction commits.

    ledger = twoqueue.ledger_of(db)                     # once; db is a psycopg connection
    sender = twoqueue.Sender(pika.URLParameters(url), ledger, "twoqueue")
    with db.transaction():
        db.execute("INSERT INTO orders …")
        sender.send(db, twoqueue.Message("orders", "order.placed", b"…"))

The README beside this file has the guarantees and the limits. bridge/wire/doc.go describes the wire
format, and bridge/doc.go the rules.
"""

import dataclasses
import os
import re
import struct
import threading
import time
import uuid
import zlib
from datetime import timedelta

import pika
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

MAX_SHORT = 255  # bytes of a name, a key or a property
MAX_BYTES = 64 << 10  # of all headers and properties
MAX_HEADERS = 1000
MAX_ELEMENTS = 8192  # of a table or list in the headers
MAX_DEPTH = 32  # of tables and lists in the headers
MAX_EXPIRATION = 10 * 365 * 24 * 60 * 60 * 1000  # ms
MAX_MEMBERS = 1000  # of a group
GROUP_BYTES = 128 << 10  # of its records: this sender's own limit
DIRECT_REPLY = "amq.rabbitmq.reply-to"
# All exceptions of pika: OSError if it cannot resolve a name, the last one if the broker accepts the
# connection and does not answer.
OUTAGE = (pika.exceptions.AMQPError, OSError, AMQPConnectorException)


class Refused(Exception):
    """The message can never be sent. Nothing has been done."""


class WrongDatabase(Exception):
    """The transaction is in another database than the ledger."""


@dataclasses.dataclass(frozen=True)
class Message:
    """A message as the receiver will see it, and its target.

    The empty exchange is the default exchange, where routing_key names a queue. properties has any
    properties of pika.BasicProperties, except headers, delivery_mode, message_id and cluster_id.
    Messages with the same order_key stay in order. The row of a carried message holds a copy of it, so that the
    transaction may commit without the broker.
    """

    exchange: str
    routing_key: str
    body: bytes = b""
    properties: dict = dataclasses.field(default_factory=dict)
    headers: dict = dataclasses.field(default_factory=dict)
    order_key: str = ""
    carried: bool = False
    id: uuid.UUID | None = None


def stage(m, ledger, staged_at=None):
    """Returns the properties of the staged message. staged_at is in ms since 1970."""
    check(m)
    properties = {name: value for name, value in m.properties.items() if value not in (None, "", 0)}
    headers = dict(m.headers)
    # The broker must not act on these in the staging queue.
    for name in ("expiration", "priority", "user_id"):
        if name in properties:
            headers["x-bridge-" + name.replace("_", "-")] = str(properties.pop(name))
    for name in ("CC", "BCC"):
        if name in headers:
            headers["x-bridge-" + name.lower()] = headers.pop(name)
    headers["x-bridge-ledger"] = str(ledger)
    headers["x-bridge-exchange"] = m.exchange
    headers["x-bridge-routing-key"] = m.routing_key
    if m.order_key:
        headers["x-bridge-order-key"] = m.order_key
    if m.carried:
        headers["x-bridge-carried"] = True
    if staged_at:
        headers["x-bridge-staged-at"] = staged_at  # too large for 32 bits, so pika writes 64
    staged = pika.BasicProperties(headers=dict(sorted(headers.items())), message_id=str(m.id), delivery_mode=2, **properties)
    try:
        staged.encode()
    except Exception as error:  # a type that pika does not write, or a number too large for AMQP
        raise Refused(f"AMQP cannot carry the headers or properties: {error!r}") from error
    return staged


def check(m):
    """Raises Refused unless the message can be sent, forwarded, and read by every consumer."""
    p = m.properties
    refuse_if(m.id.int == 0, "the ID is zero")
    refuse_if(not isinstance(m.body, bytes), "the body is not bytes")
    taken = {"headers", "delivery_mode", "message_id", "cluster_id"}  # AMQP reserves the last one
    refuse_if(p.keys() & taken, "headers, delivery_mode, message_id and cluster_id are no properties here")
    # AMQP could carry other types, but then the message would be malformed.
    for text in (m.exchange, m.routing_key, m.order_key):
        refuse_if(not isinstance(text, str), "exchange, routing key and order key must be str")
    for name, value in p.items():
        number = name in ("priority", "timestamp")
        fits = isinstance(value, int) and not isinstance(value, bool) if number else isinstance(value, str)
        refuse_if(value is not None and not fits, f"the property {name} must be {'int' if number else 'str'}")
    refuse_if(not m.exchange and not m.routing_key, "no target: exchange and routing key are empty")
    for text in (m.exchange, m.routing_key, m.order_key, *p.values()):
        refuse_if(isinstance(text, str) and len(text.encode()) > MAX_SHORT, f"a name, key or property has more than {MAX_SHORT} bytes")
    refuse_if(p.get("reply_to") == DIRECT_REPLY, "direct reply-to works on the sender's own channel only")
    keys = [m.routing_key]
    for name in ("CC", "BCC"):
        if name in m.headers:
            copies = m.headers[name]
            refuse_if(not isinstance(copies, list) or not all(isinstance(key, str) for key in copies), f"{name} is no list of strings")
            refuse_if(any(len(key.encode()) > MAX_SHORT for key in copies), f"a key of {name} has more than {MAX_SHORT} bytes")
            keys += copies
    refuse_if(not m.exchange and any(key.startswith(DIRECT_REPLY) for key in keys), "a direct reply-to is no queue")
    refuse_if(any(name.startswith("x-bridge-") for name in m.headers), "names of headers that begin with x-bridge- are reserved")
    refuse_if("\0" in m.order_key, "the order key contains a NUL")
    refuse_if(m.order_key and p.get("priority"), "a message with an order key must have no priority")
    refuse_if(m.order_key and m.carried, "a message with an order key must not be carried")
    refuse_if(not 0 <= (p.get("priority") or 0) <= 255, "the priority is not between 0 and 255")
    if expiration := p.get("expiration"):
        refuse_if(not re.fullmatch("[0-9]{1,12}", expiration) or int(expiration) > MAX_EXPIRATION, "the expiration is no number of ms, or is more than ten years")
    refuse_if(len(m.headers) > MAX_HEADERS, f"more than {MAX_HEADERS} headers")
    texts = (value for name, value in p.items() if isinstance(value, str) and name != "user_id")
    size = 64 + len(str(m.id)) + sum(len(text.encode()) for text in texts) + size_of(m.headers, 0) - 1
    refuse_if(size > MAX_BYTES, f"headers and properties have {size} bytes: at most {MAX_BYTES}")


def size_of(value, depth):
    """Returns the bytes of a header's value, as verifiers count them."""
    if isinstance(value, str):
        return 5 + len(value.encode())
    if isinstance(value, bytes):
        return 5 + len(value)
    if not isinstance(value, (dict, list)):
        return 16
    refuse_if(depth > MAX_DEPTH, f"headers are nested more than {MAX_DEPTH} deep")
    refuse_if(len(value) > MAX_ELEMENTS, f"a table or list has more than {MAX_ELEMENTS} elements")
    if isinstance(value, list):
        return 5 + sum(size_of(element, depth + 1) for element in value)
    return 5 + sum(1 + len(name.encode()) + size_of(inner, depth + 1) for name, inner in value.items())


def refuse_if(condition, reason):
    if condition:
        raise Refused(reason)


def record(staged, body):
    """Returns a staged message in bytes, as a row carries it and a group contains it."""
    headers = {name: value for name, value in staged.headers.items() if name != "x-bridge-ledger"}
    # pika encodes the properties as in an AMQP content header: flags, then values.
    encoded = b"".join(pika.BasicProperties(**{**vars(staged), "headers": headers}).encode())
    return struct.pack(">I", len(encoded)) + encoded + struct.pack(">I", len(body)) + body


def group(ledger, records):
    """Returns one message that contains several: its properties and its body."""
    headers = {"x-bridge-group": "1", "x-bridge-ledger": str(ledger)}
    properties = pika.BasicProperties(headers=headers, content_type="application/vnd.twoqueue.group", message_id=str(uuid7()), delivery_mode=2)
    return properties, b"".join(records)


def ordered_queue(staging_queue, order_key, ordered_queues):
    """Returns the name of the ordered queue of a key."""
    return f"{staging_queue}.ordered.{zlib.crc32(order_key.encode()) % ordered_queues}"


def uuid7():
    """Returns a UUIDv7 of this moment."""
    random = uuid.uuid4().int & ~(0xFFFFFFFFFFFF << 80) & ~(0xF << 76)
    return uuid.UUID(int=time.time_ns() // 1_000_000 << 80 | 7 << 76 | random)


def ledger_of(db):
    """Returns the identity of the database's ledger."""
    with db.transaction(), db.cursor(row_factory=tuple_row) as cursor:  # leaves no transaction open
        return cursor.execute("SELECT identity FROM bridge_identity").fetchone()[0]


# The join with bridge_identity inserts no row in another database. Both times of a carried row come
# from one reading of the clock.
RECORD = "INSERT INTO bridge_ledger (id) SELECT %s::uuid FROM bridge_identity WHERE identity = %s"
CARRY = """INSERT INTO bridge_ledger (id, message, recorded_at, stage_at)
SELECT %s::uuid, %s::bytea, t, t + %s FROM bridge_identity, clock_timestamp() AS t WHERE identity = %s"""


NOT_OPEN = {
    TransactionStatus.IDLE: "no transaction is open; begin it before, as with db.transaction()",
    TransactionStatus.INERROR: "a statement of the transaction has failed; roll the transaction back",
    TransactionStatus.ACTIVE: "a statement is running on the connection",
    TransactionStatus.UNKNOWN: "the connection to the database is lost or closed",
}


class Sender:
    """Sends messages in transactions. It has one connection to the broker, and serves one thread at a time."""

    def __init__(self, parameters, ledger, staging_queue, exchange="", ordered_queues=0):
        """exchange and ordered_queues must be the verifiers' (BRIDGE_EXCHANGE,
        BRIDGE_ORDERED_SHARDS). parameters, a pika.URLParameters, should have a heartbeat, and a
        blocked_connection_timeout: the time for which a blocking broker keeps a transaction open."""
        self.parameters, self.ledger = parameters, ledger
        self.staging_queue, self.exchange, self.ordered_queues = staging_queue, exchange, ordered_queues
        self.connection = self.channel = None
        self.process = os.getpid()
        self.sending = {}  # a lock of each process: a fork may copy a lock that another thread holds

    def send(self, db, *messages):
        """Sends messages in the open transaction of db, and returns their IDs.

        If send raises an exception, none of its messages is delivered, even if the transaction then
        commits. If send returns, all are delivered if and only if it commits.
        """
        # Two threads at once would take each other's confirms. To wait here could be a deadlock, with a
        # lock in the database.
        sending = self.sending.setdefault(os.getpid(), threading.Lock())
        if not sending.acquire(blocking=False):
            raise RuntimeError("send: another thread is sending; make a Sender for each thread")
        try:
            return self._send(db, messages)
        finally:
            sending.release()

    def _send(self, db, messages):
        if (reason := NOT_OPEN.get(db.info.transaction_status)) is not None:
            raise RuntimeError(f"send: {reason}")
        now = time.time_ns() // 1_000_000  # before the ID is recorded
        staged = []
        for m in messages:
            # A new ID has the time of the call. A given ID needs the time as a header.
            known = m.id is not None
            m = m if known else dataclasses.replace(m, id=uuid7())
            refuse_if(m.order_key and not self.ordered_queues, "there are no ordered queues")
            staged.append((m, stage(m, self.ledger, now if known else None)))
        reachable = self._connect(needed=not all(m.carried for m in messages))
        with db.transaction():  # a savepoint: an exception removes the rows, so that verifiers drop the messages
            for m, properties in staged:
                self._record(db, m, properties, reachable)
            if reachable:
                for queue, batch in self._batches(staged):
                    self._publish(queue, batch)
        return [m.id for m, _ in staged]

    def _record(self, db, m, properties, published):
        """Inserts the message's row, before the first byte of the message leaves (rule 1)."""
        if m.carried:
            later = timedelta(seconds=1 if published else 0)  # until verifiers stage it
            inserted = db.execute(CARRY, (m.id, record(properties, m.body), later, self.ledger))
        else:
            inserted = db.execute(RECORD, (m.id, self.ledger))
        if inserted.rowcount != 1:
            raise WrongDatabase(f"this is not the database of ledger {self.ledger}")

    def _batches(self, staged):
        """Yields queues, each with the messages that travel to it together."""
        by_queue = {}
        for m, properties in staged:
            queue = ordered_queue(self.staging_queue, m.order_key, self.ordered_queues) if m.order_key else self.staging_queue
            by_queue.setdefault((queue, m.carried), []).append((m, properties))
        for (queue, _), messages in by_queue.items():
            batch, size = [], 0
            for m, properties in messages:
                length = len(record(properties, m.body))
                if batch and (len(batch) == MAX_MEMBERS or size + length > GROUP_BYTES):
                    yield queue, batch
                    batch, size = [], 0
                batch.append((m, properties))
                size += length
            yield queue, batch

    def _publish(self, queue, batch):
        """Publishes messages and waits for the confirm (rule 2). A failure matters unless the rows
        carry the messages."""
        (first, properties), carried = batch[0], batch[0][0].carried
        body = first.body
        if len(batch) > 1:
            properties, body = group(self.ledger, [record(p, m.body) for m, p in batch])
        try:
            if self.channel is None:
                raise pika.exceptions.AMQPConnectionError("the connection is lost")
            # pika raises an exception if the broker returns or refuses the message.
            self.channel.basic_publish(self.exchange, queue, body, properties, mandatory=True)
        except BaseException as error:
            self.close()  # a late confirm must not count as the next message's
            if not carried or not isinstance(error, OUTAGE):
                raise

    def _connect(self, needed):
        """Opens the connection if there is none, and returns whether there is one."""
        if self.process != os.getpid():  # after a fork: the parent goes on with its connection
            self.process, self.connection, self.channel = os.getpid(), None, None
        try:
            if self.connection is not None:
                self.connection.process_data_events()  # raises an exception if the broker has closed it
        except OUTAGE:
            self.close()
        if self.channel is not None and self.channel.is_open:
            return True
        self.close()
        try:
            self.connection = pika.BlockingConnection(self.parameters)
            channel = self.connection.channel()
            channel.confirm_delivery()
            self.channel = channel  # only now: a signal's handler may raise an exception above
        except OUTAGE:
            self.close()
            if needed:
                raise
        return self.channel is not None

    def close(self):
        """Closes the connection. The next call of send opens another one."""
        connection, self.connection, self.channel = self.connection, None, None
        if connection is not None and connection.is_open:
            try:
                connection.close()
            except OUTAGE:
                pass
