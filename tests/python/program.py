"""Sends messages as the test tells it. Each line of the standard input is a transaction in JSON:

    messages  in the form of the test vectors
    end       "commit" or "rollback"; "catch" commits although send has failed
    stops     points at which the program says so and waits for another line

It answers each line with "sent", "rolled back", or the exception.
"""

import json
import sys

import pika
import psycopg

import twoqueue
import vectors

stops = []


def reached(point):
    if point in stops:
        print(point, flush=True)
        sys.stdin.readline()


class Sender(twoqueue.Sender):
    def _record(self, *args):
        super()._record(*args)
        reached("recorded")

    def _publish(self, *args):
        reached("publishing")
        super()._publish(*args)
        reached("published")


def transact(db, sender, job):
    with db.transaction():
        db.execute("INSERT INTO orders (id) SELECT unnest(%s::text[])", ([v["id"] for v in job["messages"]],))
        reached("begun")
        try:
            sender.send(db, *map(vectors.message, job["messages"]))
        except Exception as error:
            if job["end"] != "catch":
                raise
            return type(error).__name__
        reached("sent")
        if job["end"] == "rollback":
            raise psycopg.Rollback
    reached("committed")
    return "rolled back" if job["end"] == "rollback" else "sent"


def main():
    brief = json.loads(sys.argv[1])
    db = psycopg.connect(brief["database"], autocommit=True)
    parameters = pika.URLParameters(brief["amqp"])
    sender = Sender(parameters, twoqueue.ledger_of(db), brief["queue"], brief["exchange"], brief["shards"])
    for line in iter(sys.stdin.readline, ""):
        job = json.loads(line)
        stops[:] = job.get("stops") or []
        try:
            answer = transact(db, sender, job)
        except Exception as error:
            answer = type(error).__name__
        print(answer, flush=True)


main()
