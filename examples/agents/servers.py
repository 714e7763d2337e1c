"""The two MCP servers of the example, with the official SDK: `orders` and `reports`, each on its own port.

They have no idea of permissions: whoever reaches them may call everything. Every call is printed, so that one can see
what came through.
"""

from __future__ import annotations

import argparse
import asyncio
import socket

import uvicorn
from mcp.server import MCPServer

orders = MCPServer("orders")
reports = MCPServer("reports")


def _called(text: str) -> str:
    print(text, flush=True)
    return text


@orders.tool()
def find_order(number: int) -> str:
    """Find an order by its number."""
    return _called(f"order {number}: 3 lamps, shipped")


@orders.tool()
def place_order(article: str, amount: int = 1) -> str:
    """Order some of an article."""
    return _called(f"ordered {amount} of {article}")


@orders.tool()
def refund_order(number: int) -> str:
    """Give the money for an order back."""
    return _called(f"order {number} refunded")


@reports.tool()
def read_report(name: str) -> str:
    """Read a report."""
    return _called(f"report {name}: all is well")


@reports.tool()
def delete_report(name: str) -> str:
    """Delete a report for good."""
    return _called(f"report {name} deleted")


async def serve(orders_port: int, reports_port: int) -> None:
    """Both servers, until interrupted."""
    serving = []
    for server, name, port in ((orders, "orders", orders_port), (reports, "reports", reports_port)):
        listening = socket.create_server(("127.0.0.1", port))
        app = server.streamable_http_app(streamable_http_path=f"/{name}/mcp")
        serving.append(uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve(sockets=[listening]))
        print(f"{name} listens on 127.0.0.1:{listening.getsockname()[1]}", flush=True)
    await asyncio.gather(*serving)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("orders", "reports"):
        parser.add_argument(f"--{name}", type=int, default=0, metavar="PORT", help="by default a free one")
    given = parser.parse_args()
    asyncio.run(serve(given.orders, given.reports))
