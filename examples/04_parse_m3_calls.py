"""M3's answers as a stream: reasoning, text and complete calls, whatever the pieces look like."""

from m3_runtime.chat.parser import AnswerParser, Call

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
NS = "]<]minimax[>["
ANSWER = (
    "<mm:think>They want Oslo.</mm:think>Let me look."
    f'{NS}<tool_call>\n{NS}<invoke name="get_weather">{NS}<city>Oslo <central>{NS}</city>{NS}<days>3{NS}</days>'
    f"{NS}</invoke>\n{NS}</tool_call>"
)

parser = AnswerParser({"get_weather": WEATHER})
events = [event for at in range(0, len(ANSWER), 7) for event in parser.feed(ANSWER[at : at + 7])]
events += parser.finish()
for event in events:
    print(event)
(call,) = (event for event in events if isinstance(event, Call))
assert call.arguments == {"city": "Oslo <central>", "days": 3}
