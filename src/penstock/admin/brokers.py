"""The brokers of a cluster: addresses, runtime information, settings."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.admin.cluster_requests import ClusterRequests, on_host
from penstock.admin.reports import BrokerAddress
from penstock.protocol import bodies
from penstock.protocol.codes import RequestCode


class BrokerActions(ClusterRequests):
    """Actions on brokers."""

    @on_host
    async def cluster(self) -> list[BrokerAddress]:
        """Every registered broker, masters first within their name."""
        info = await self.cluster_info()
        rows = [
            BrokerAddress(data.cluster, name, broker_id, address)
            for name, data in info.broker_addr_table.items()
            for broker_id, address in data.broker_addrs.items()
        ]
        return sorted(rows, key=lambda row: (row.cluster, row.broker_name, row.broker_id))

    @on_host
    async def broker_info(self, broker: str) -> dict[str, str]:
        """Version, rates, totals and disk of a broker, which is given by name or address."""
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        address = await self._address(broker)
        return (
            await self.ask_body(bodies.common.KvTable, address, code, about=f"broker {broker!r}")
        ).table

    @on_host
    async def broker_config(self, broker: str) -> dict[str, str]:
        """The settings of a broker, under RocketMQ's keys."""
        code = RequestCode.GET_BROKER_CONFIG
        address = await self._address(broker)
        return (
            await self.ask_body(
                bodies.config_text.ConfigText, address, code, about=f"broker {broker!r}"
            )
        ).settings

    @on_host
    async def update_broker_config(self, broker: str, settings: Mapping[str, str]) -> None:
        """Change settings of a running broker."""
        await self.ask(
            await self._address(broker),
            RequestCode.UPDATE_BROKER_CONFIG,
            None,
            bodies.config_text.ConfigText(dict(settings)).to_bytes(),
            about=f"settings {', '.join(settings)} of broker {broker!r}",
        )

    async def _address(self, broker: str) -> str:
        """The address of a broker: itself, or of the master of that name."""
        return broker if ":" in broker else (await self.masters([broker]))[broker]
