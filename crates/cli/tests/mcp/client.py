"""Starts `tllmprof mcp` by the protocol's own client, lists the tools and calls them.

    client.py COMMAND FOLDER < CALLS

CALLS is a JSON list of [tool, arguments]. Prints JSON: the names of the tools, and each answer as [is an error, text].
"""
import asyncio
import json
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def main(command, folder):
    calls = json.load(sys.stdin)
    server = StdioServerParameters(command=command, args=["mcp", "--allow-capture", folder])
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        await session.initialize()
        tools = (await session.list_tools()).tools
        answers = []
        for tool, arguments in calls:
            answer = await session.call_tool(tool, arguments)
            failed = bool(answer.is_error)
            answers.append([failed, "\n".join(part.text for part in answer.content)])
    print(json.dumps({"tools": [tool.name for tool in tools], "answers": answers}))


asyncio.run(main(*sys.argv[1:]))
