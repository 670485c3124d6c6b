"""`leasekeeper bridge`: what it answers once its queue is empty, and what it refuses before it takes anything."""

import json

import pytest
import redis

from leasekeeper.stores.redis.urls import clean_url
from tests.cli.workplace import Workplace


def test_a_drained_list_is_jobs_and_the_answer_says_what_was_done(
    place: Workplace, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = clean_url(redis_url)
    job = {"job_id": "5f1c", "task": "buy", "profile_id": "shop_us_main", "callback_url": ""}
    with redis.Redis.from_url(queue, decode_responses=True) as client:
        client.lpush("jobs", json.dumps(job), "no job", json.dumps(job))
        monkeypatch.setenv("QUEUE", queue)
        counts = place.json("bridge", "redis", "env:QUEUE", "--list", "jobs", "--invalid", "apart", "--drain")
        assert counts == {"taken": 3, "submitted": 1, "duplicates": 1, "rejected": 1, "replied": 0}
        assert [json.loads(each)["body"] for each in client.lrange("apart", 0, -1)] == ["no job"]
    assert place.json("jobs", "show", "5f1c")["task"] == "buy"


def test_what_cannot_work_is_refused_with_its_reason(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEASEKEEPER_WEBHOOK_SECRET", raising=False)
    monkeypatch.delenv("QUEUE", raising=False)
    url, password = "redis://127.0.0.1:1/0", "redis://:s3cret@127.0.0.1:1/0"
    for arguments, said in (
        (("redis", password, "--list", "jobs"), "write env:NAME or file:PATH instead"),
        (("redis", "env:QUEUE", "--list", "jobs"), "there is no environment variable QUEUE"),
        (("redis", url, "--list", "jobs", "--reply-to", "results"), "LEASEKEEPER_WEBHOOK_SECRET"),
        (("sqs", "jobs"), "must be the URL of an SQS queue"),
        (("redis", url, "--list", "jobs", "--name", "a b"), "--name"),
        (("rabbitmq", "amqp://h", "--queue", "q", "--reply-to", "a", "--reply-exchange", "b"), "not to both"),
    ):
        refused = place.cli("bridge", *arguments)
        assert refused.exit_code == 2, refused.output
        assert said in refused.stderr
        assert "s3cret" not in refused.output
    away = place.cli("bridge", "redis", url, "--list", "jobs", "--drain")
    assert away.exit_code == 6, away.output
    assert "Redis list jobs" in away.stderr
