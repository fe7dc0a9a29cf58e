#!/usr/bin/env python3
"""Sends a year of headlines one by one to a queue of `brim serve`, like a news bot. The server scores them in batches of ten and
selects the model by New York market hours. Prints the sentiment of each month.

    brim --env-file examples/serve_news/bot.env serve &
    examples/serve_news/bot.py                       # or: bot.py --per-day 40 --url http://127.0.0.1:8080
"""
import argparse
import collections
import datetime
import json
import random
import urllib.request
from collections.abc import Iterator
from typing import Any

GOOD = ["Shares rise after strong earnings", "Chip maker beats forecasts", "Retailer raises its outlook", "Upgrade lifts bank to a record"]
BAD = ["Profit warning sends shares lower", "Regulator fines lender", "Carrier cuts jobs as losses grow", "Recall hits car maker"]
PLAIN = ["Company to report on Thursday", "Board names new finance chief", "Talks continue, says minister"]


def headlines(per_day: int) -> Iterator[dict[str, str]]:
    random.seed(1)
    day = datetime.date(2025, 1, 1)
    while day.year == 2025:
        bias = random.random()
        for n in range(per_day):
            kind = random.choices([GOOD, BAD, PLAIN], [bias, 1 - bias, 0.4])[0]
            yield {"id": f"{day}-{n}", "date": str(day), "headline": random.choice(kind)}
        day += datetime.timedelta(days=1)


def post(url: str, path: str, body: object) -> Any:
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--url", default="http://127.0.0.1:8080")
    arguments.add_argument("--per-day", type=int, default=4)
    given = arguments.parse_args()
    scored: list[dict[str, Any]] = []
    for row in headlines(given.per_day):
        response = post(given.url, "/queues/sentiment/score_or_queue", {"text": row["headline"], "item": row, "source": "wire"})
        scored += response.get("items", [])  # present if this call completed a batch
    scored += post(given.url, "/queues/sentiment/flush_and_apply", {})["items"]
    months: dict[str, list[float]] = collections.defaultdict(list)
    models: collections.Counter[str] = collections.Counter()
    for item in scored:
        months[item["date"][:7]].append(item.get("sentiment_score", 0.0))
        models[item.get("model", "failed")] += 1
    for month, scores in sorted(months.items()):
        mean = sum(scores) / len(scores)
        print(f"{month} {len(scores):6} headlines {mean:+.2f} {'+' * round(mean * 20) or '-' * round(-mean * 20)}")
    print(f"{len(scored)} headlines, scored by " + ", ".join(f"{model}: {n}" for model, n in models.items()))


if __name__ == "__main__":
    main()
