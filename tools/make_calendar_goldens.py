#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/serve/: results of Python's zoneinfo for rules of zone files, and the sessions of the New York Stock
Exchange according to exchange_calendars 4.13.2.

    python tools/make_calendar_goldens.py
"""
import datetime
import io
import pathlib
import random
import struct
import zoneinfo

import exchange_calendars

TARGET = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "serve"
FIRST, LAST = 2022, 2027
# Without zero-based days, which zoneinfo places one day early.
RULES = ["UTC0", "EST5EDT,M3.2.0,M11.1.0", "<+0330>-3:30", "GMT0BST,M3.5.0/1,M10.5.0", "IST-1GMT0,M10.5.0,M3.5.0/1",
         "<+1030>-10:30<+11>-11,M10.1.0,M4.1.0", "EET-2EEST,M3.4.4/50,M10.4.4/50", "<-02>2<-01>,M3.5.0/-1,M10.5.0/0",
         "AEST-10AEDT,M10.1.0,M4.1.0/3", "AAA3BBB,J60/0,J300/12:30:15", "XXX3EDT4,0/0,J365/23",
         "<+00>0<+02>-2,M3.5.0/1,M10.5.0/3"]


def zone_file(rule):
    """A version 2 file without transitions: only the footer applies."""
    block = b"TZif2" + bytes(15) + struct.pack(">6l", 0, 0, 0, 0, 1, 4) + struct.pack(">lBB", 0, 0, 0) + b"LMT\0"
    return block + block + b"\n" + rule.encode() + b"\n"


def offset(zone, moment):
    at = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc) + datetime.timedelta(seconds=moment)
    return int(at.astimezone(zone).utcoffset().total_seconds())


def zones():
    rng = random.Random(5)
    for rule in RULES:
        zone = zoneinfo.ZoneInfo.from_file(io.BytesIO(zone_file(rule)))
        moments = set()
        for _ in range(20):  # both sides of transitions, and random times
            low = rng.randrange(0, 4_000_000_000)
            moments.add(low)
            high = low + 200 * 86400
            if offset(zone, low) == offset(zone, high):
                continue
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if offset(zone, middle) == offset(zone, low) else (low, middle)
            moments |= {low, high}
        for moment in sorted(moments):
            yield f"{rule} {moment} {offset(zone, moment)}"


def market():
    zone = zoneinfo.ZoneInfo("America/New_York")
    calendar = exchange_calendars.get_calendar("XNYS", start=f"{FIRST}-01-01", end=f"{LAST}-12-31")
    for session, row in calendar.schedule.iterrows():
        day = session.date()
        early = int(datetime.datetime(day.year, day.month, day.day, 4, tzinfo=zone).timestamp())
        opens, closes = int(row["open"].timestamp()), int(row["close"].timestamp())
        # date, first moment, then minutes until open, close and end of late trading
        yield f"{day} {early} {(opens - early) // 60} {(closes - early) // 60} {(closes + 4 * 3600 - early) // 60}"


if __name__ == "__main__":
    TARGET.mkdir(parents=True, exist_ok=True)
    (TARGET / "zone_rules.txt").write_text("".join(line + "\n" for line in zones()))
    (TARGET / "nyse_days.txt").write_text("".join(line + "\n" for line in market()))
