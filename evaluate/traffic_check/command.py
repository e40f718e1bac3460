"""The command `evaluate.traffic_check`: measures one server with both tools, in turns."""

from conf.compose import Command
from conf.schema.traffic_check import TrafficCheckConfig

COMMAND = Command(
    "traffic_check",
    TrafficCheckConfig,
    (
        "python -m evaluate.traffic_check",
        "python -m evaluate.traffic_check clients=[256] repeats=5",
        "python -m evaluate.traffic_check url=http://127.0.0.1:8000 tokenizer=/models/mine",
    ),
    module="evaluate.traffic_check",
)


def main(config: TrafficCheckConfig) -> None:
    from evaluate.traffic_check.comparing import check_traffic

    check_traffic(config)
