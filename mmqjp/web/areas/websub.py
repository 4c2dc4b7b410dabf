"""The endpoint that WebSub hubs call: to confirm a subscription, to refuse one, and to push. The addresses cannot be
guessed, and need no token; a call only leaves a message for the fetcher."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse, Response

from feeds.fetch.hubs import CALLBACK, HubMailbox, Signature
from feeds.fetch.state import STATE_FILE, HubSubscription, find_subscription
from mmqjp.service.drops import DROPS
from mmqjp.web.site import NO_STORE, Site, plain_error_response

LONGEST = 2_000  # maximum length, in characters, of a hub's parameters and reason


def hub_router(site: Site, routes: APIRouter) -> None:
    def subscription(token: str) -> HubSubscription | None:
        return find_subscription(site.state / DROPS / STATE_FILE, token)

    def mailbox() -> HubMailbox:
        return HubMailbox(site.state / DROPS / STATE_FILE)

    @routes.get(f"{CALLBACK}{{token}}", include_in_schema=False)
    def confirm(request: Request, token: str) -> Response:
        asked = {name: value[: LONGEST + 1] for name, value in request.query_params.items()}
        mode, topic, challenge = (asked.get(f"hub.{name}", "") for name in ("mode", "topic", "challenge"))
        known = subscription(token)
        if known is None or topic != known.topic:
            return plain_error_response(CALLBACK, 404, "no such subscription is wanted")
        if mode == "denied":
            mailbox().leave(token, "denied", reason=asked.get("hub.reason", "")[:LONGEST])
            return PlainTextResponse("noted\n", headers=NO_STORE)
        if mode not in ("subscribe", "unsubscribe") or mode != known.mode or not 0 < len(challenge) <= LONGEST:
            return plain_error_response(CALLBACK, 404, "no such subscription is wanted")
        mailbox().leave(token, "verified", mode=mode, lease=asked.get("hub.lease_seconds", "")[:LONGEST])
        return PlainTextResponse(challenge, headers=NO_STORE)

    @routes.post(f"{CALLBACK}{{token}}", include_in_schema=False)
    async def push(request: Request, token: str) -> Response:
        known = await run_in_threadpool(subscription, token)
        if known is None or known.mode != "subscribe":
            return plain_error_response(CALLBACK, 410, "this subscription no longer exists")
        signature = Signature(request.headers.get("x-hub-signature", ""), known.secret)
        async for part in request.stream():
            signature.update(part)
        # A wrong signature gets no error, as the standard advises.
        await run_in_threadpool(mailbox().leave, token, "pushed" if signature.is_right() else "forged")
        return Response(status_code=202, headers=NO_STORE)


ROUTERS = (hub_router,)
