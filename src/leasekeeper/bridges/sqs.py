"""An SQS queue: messages are deleted when they are jobs, and become visible again if this process dies before.

Invalid messages are sent to the dead-letter queue with the reason as an attribute. Results go to a queue, or to an SNS
topic. Credentials come from the usual AWS environment.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import boto3
from botocore.config import Config as AwsConfig
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, ParamValidationError

from leasekeeper.bridges.broker import Message, Rejected, Reply
from leasekeeper.errors import BrokerUnavailable, InputError, Problem
from leasekeeper.threads import run_in_thread

T = TypeVar("T")

_BATCH: Final = 10
_LONG_POLL_SECONDS: Final = 20
_TIMEOUT_SECONDS: Final = 30
_MAX_REASON: Final = 1_000
_REGION: Final = re.compile(r"(?:sqs\.([a-z0-9-]+)\.|queue\.)")
_PASSING: Final = (
    *("Throttling", "ThrottlingException", "RequestThrottled", "TooManyRequestsException", "KmsThrottled"),
    *("OverLimit", "RequestTimeout", "ServiceUnavailable", "InternalError", "InternalFailure"),
)
_SERVER_ERROR: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class SqsQueues:
    """Which queues a bridge uses, by URL. `replies` may be the ARN of an SNS topic."""

    jobs: str
    invalid: str = ""
    replies: str | None = None


@dataclass(slots=True)
class SqsBroker:
    """One SQS queue. See `broker.Broker`."""

    queues: SqsQueues
    _sqs: Any = None
    _sns: Any = None
    _invalid: str = ""

    @property
    def location(self) -> str:
        return f"SQS queue {_name(self.queues.jobs)}"

    async def open(self) -> None:
        await run_in_thread(self._connect)

    def _connect(self) -> None:
        parts = urlsplit(self.queues.jobs)
        if parts.scheme not in ("http", "https") or not parts.path.strip("/"):
            raise InputError("the bridge cannot start", [Problem("queue", "must be the URL of an SQS queue")])
        region = _REGION.match(parts.hostname or "")
        config = AwsConfig(
            connect_timeout=_TIMEOUT_SECONDS,
            read_timeout=_LONG_POLL_SECONDS + _TIMEOUT_SECONDS,
            retries={"total_max_attempts": 2, "mode": "standard"},
        )
        session = boto3.session.Session()
        where = (region and region.group(1)) or session.region_name or "us-east-1"
        endpoint = f"{parts.scheme}://{parts.netloc}"
        self._sqs = session.client("sqs", region_name=where, endpoint_url=endpoint, config=config)
        if self.queues.replies is not None and self.queues.replies.startswith("arn:"):
            own = None if region else endpoint
            self._sns = session.client("sns", region_name=where, endpoint_url=own, config=config)
        self._invalid = self.queues.invalid or self._dead_letter_queue()

    def _dead_letter_queue(self) -> str:
        """The dead-letter queue in the redrive policy of the queue of jobs."""
        asked = {"QueueUrl": self.queues.jobs, "AttributeNames": ["RedrivePolicy"]}
        found = self._called(self._sqs.get_queue_attributes, **asked)
        policy = json.loads(found.get("Attributes", {}).get("RedrivePolicy", "{}"))
        arn = policy.get("deadLetterTargetArn")
        if not arn:
            fault = "has no dead-letter queue for invalid messages: give it one, or name a queue with --invalid"
            raise InputError("the bridge cannot start", [Problem(self.location, fault)])
        *_, owner, name = str(arn).split(":")
        url = self._called(self._sqs.get_queue_url, QueueName=name, QueueOwnerAWSAccountId=owner)
        return str(url["QueueUrl"])

    async def take(self, limit: int, seconds: float) -> Sequence[Message]:
        found: list[Message] = []
        wait = min(int(seconds), _LONG_POLL_SECONDS)
        while len(found) < limit:
            page = await self._call(
                self._connected().receive_message,
                QueueUrl=self.queues.jobs,
                MaxNumberOfMessages=min(_BATCH, limit - len(found)),
                WaitTimeSeconds=0 if found else wait,
                AttributeNames=["All"],
            )
            messages = page.get("Messages", [])
            found += [Message(id=each["MessageId"], body=each["Body"].encode(), handle=each) for each in messages]
            if not messages:
                break
        return found

    async def accept(self, messages: Sequence[Message]) -> None:
        await self._in_batches(
            self._connected().delete_message_batch,
            [{"ReceiptHandle": _received(each)["ReceiptHandle"]} for each in messages],
        )

    async def reject(self, rejected: Sequence[Rejected]) -> None:
        entries = []
        for each in rejected:
            message = _received(each.message)
            reason = _plain(each.reason)[:_MAX_REASON]
            attributes = {"leasekeeper_code": _text(each.code), "leasekeeper_reason": _text(reason or each.code)}
            entries.append(
                {
                    "MessageBody": each.message.body.decode(),
                    "MessageAttributes": attributes,
                    **_order(self._invalid, message),
                }
            )
        await self._in_batches(self._connected().send_message_batch, entries, queue=self._invalid)
        await self.accept([each.message for each in rejected])

    async def give_back(self, messages: Sequence[Message]) -> None:
        await self._in_batches(
            self._connected().change_message_visibility_batch,
            [{"ReceiptHandle": _received(each)["ReceiptHandle"], "VisibilityTimeout": 0} for each in messages],
        )

    async def reply(self, replies: Sequence[Reply]) -> None:
        target = self.queues.replies or ""
        for each in replies:
            attributes = {name: _text(value) for name, value in each.headers.items()}
            attributes["type"] = _text(each.type)
            fifo = {"MessageGroupId": each.type, "MessageDeduplicationId": each.id} if target.endswith(".fifo") else {}
            body = each.body.decode()
            if self._sns is not None:
                sent = {"TopicArn": target, "Message": body, "MessageAttributes": attributes, **fifo}
                await self._call(self._sns.publish, **sent)
            else:
                sent = {"QueueUrl": target, "MessageBody": body, "MessageAttributes": attributes, **fifo}
                await self._call(self._connected().send_message, **sent)

    async def close(self) -> None:
        client, self._sqs, self._sns = self._sqs, None, None
        if client is not None:
            client.close()

    async def _in_batches(
        self, operation: Callable[..., Any], entries: Sequence[Mapping[str, object]], queue: str | None = None
    ) -> None:
        """Call in batches of ten, each entry with its number as id. Raises if SQS refuses entries: their messages are
        delivered again.
        """
        for start in range(0, len(entries), _BATCH):
            numbered = [{"Id": str(n), **entry} for n, entry in enumerate(entries[start : start + _BATCH])]
            answer = await self._call(operation, QueueUrl=queue or self.queues.jobs, Entries=numbered)
            failed = answer.get("Failed", [])
            if failed:
                said = (
                    f"{len(failed)} of {len(numbered)} refused: {failed[0].get('Code')} {failed[0].get('Message', '')}"
                )
                raise BrokerUnavailable(f"{self.location}: {said.strip()}")

    def _connected(self) -> Any:
        if self._sqs is None:
            raise BrokerUnavailable(f"{self.location} is not connected")
        return self._sqs

    async def _call(self, operation: Callable[..., Any], **arguments: object) -> Any:
        return await run_in_thread(self._called, operation, **arguments)

    def _called(self, operation: Callable[..., Any], /, **arguments: object) -> Any:
        try:
            return operation(**arguments)
        except (NoCredentialsError, ParamValidationError) as error:
            raise InputError(f"{self.location}: {error}") from None
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if status >= _SERVER_ERROR or code in _PASSING:
                raise BrokerUnavailable(f"{self.location}: {error}") from None
            raise InputError(f"{self.location}: AWS refused: {error}") from None
        except (TimeoutError, BotoCoreError, OSError) as error:
            raise BrokerUnavailable(f"{self.location}: {error}") from None


def _name(url: str) -> str:
    return urlsplit(url).path.rpartition("/")[2]


def _received(message: Message) -> Mapping[str, Any]:
    if not isinstance(message.handle, Mapping):
        raise TypeError("this message did not come from SQS")
    return message.handle


def _order(queue: str, message: Mapping[str, Any]) -> dict[str, str]:
    """The group and deduplication ids that a FIFO queue needs."""
    if not queue.endswith(".fifo"):
        return {}
    group = message.get("Attributes", {}).get("MessageGroupId", "leasekeeper")
    return {"MessageGroupId": str(group), "MessageDeduplicationId": str(message["MessageId"])}


def _text(value: str) -> dict[str, str]:
    return {"DataType": "String", "StringValue": value}


def _plain(text: str) -> str:
    """The text without characters that SQS refuses."""
    return "".join(each if each.isprintable() or each in "\n\t" else "\ufffd" for each in text)
