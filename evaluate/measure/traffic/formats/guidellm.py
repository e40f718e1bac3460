"""guidellm's data sets: a prompt and token counts.

{"prompt": "What is a mutex?", "prompt_tokens_count": 5, "output_tokens_count": 120}
"""

from evaluate.measure.traffic.conversation import Conversation, Passage, Turn
from evaluate.measure.traffic.formats.base import Text, Tokens, TrafficFormat, TrafficRecord


class GuidellmRecord(TrafficRecord):
    prompt: Text
    prompt_tokens_count: Tokens | None = None
    """Not used: the model's own tokenizer counts."""
    output_tokens_count: Tokens


def conversation(record: GuidellmRecord) -> Conversation:
    answer = Passage(tokens=record.output_tokens_count)
    return Conversation((Turn((Passage(record.prompt),), answer),))


FORMAT = TrafficFormat("guidellm", ("prompt", "output_tokens_count"), GuidellmRecord, conversation)
