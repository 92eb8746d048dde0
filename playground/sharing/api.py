"""``/api/links``: a router of the browser's API (owner by session or visitor cookie, CSRF header on writes)."""

from uuid import UUID

from django.http import HttpRequest, HttpResponse
from ninja import Router, Status

from playground.chat.selectors import conversation_get
from playground.limits import check_can_store
from playground.sharing import selectors, services
from playground.sharing.schemas import Forked, LinkIn, LinkOut, LinkPage, LinkPatch, LinkPublish

router = Router()


@router.get("", response=LinkPage)
def links(request: HttpRequest) -> LinkPage:
    return LinkPage(items=selectors.links_of(owner=request.owner))


@router.post("", response={201: LinkOut})
def create(request: HttpRequest, body: LinkIn) -> Status:
    check_can_store(request.owner)
    conversation = conversation_get(owner=request.owner, conversation_id=body.conversation_id)
    link = services.link_create(conversation=conversation, **body.model_dump(exclude={"conversation_id"}))
    return Status(201, selectors.link_out(link))


@router.patch("/{uuid:link_id}", response=LinkOut)
def update(request: HttpRequest, link_id: UUID, body: LinkPatch) -> LinkOut:
    link = selectors.link_get(owner=request.owner, link_id=link_id)
    services.link_update(link=link, **body.model_dump(exclude_unset=True))
    return selectors.link_out(link)


@router.post("/{uuid:link_id}/publish", response=LinkOut)
def publish(request: HttpRequest, link_id: UUID, body: LinkPublish) -> LinkOut:
    check_can_store(request.owner)
    link = selectors.link_get(owner=request.owner, link_id=link_id)
    services.link_publish(link=link, message_id=body.message_id)
    return selectors.link_out(link)


@router.post("/{uuid:link_id}/revoke", response=LinkOut)
def revoke(request: HttpRequest, link_id: UUID) -> LinkOut:
    link = selectors.link_get(owner=request.owner, link_id=link_id)
    services.link_revoke(link=link)
    return selectors.link_out(link)


@router.delete("/{uuid:link_id}", response={204: None})
def delete(request: HttpRequest, link_id: UUID) -> HttpResponse:
    services.link_delete(link=selectors.link_get(owner=request.owner, link_id=link_id))
    return HttpResponse(status=204)


@router.post("/fork/{slug:token}", response={201: Forked})
def fork(request: HttpRequest, token: str) -> Status:
    check_can_store(request.owner)
    conversation = services.link_fork(link=selectors.link_open(token), owner=request.owner)
    return Status(201, Forked(conversation_id=conversation.pk))
