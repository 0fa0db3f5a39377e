"""The broker's settings over the wire: read all, change the few that may change."""

from __future__ import annotations

from penstock.broker.state import BrokerState
from penstock.protocol.bodies.codec import encode_body
from penstock.protocol.bodies.config_text import ConfigText
from penstock.protocol.codes import RequestCode
from penstock.protocol.headers.admin import BrokerConfigResult
from penstock.remoting.dispatch import Call, Reply, handles
from penstock.runtime.properties_format import format_properties


@handles(RequestCode.GET_BROKER_CONFIG)
def get_config(broker: BrokerState) -> Reply:
    """Every setting, and the version of them all."""
    return Reply(
        BrokerConfigResult(encode_body(broker.settings.version).decode()),
        format_properties(broker.settings.texts()).encode(),
    )


@handles(RequestCode.UPDATE_BROKER_CONFIG)
def update_config(broker: BrokerState, call: Call) -> None:
    """Change settings: all that are named, or, if one may not be changed, none."""
    broker.settings.change(call.json(ConfigText).settings)
