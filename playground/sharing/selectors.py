"""Everything that reads demo links."""

from uuid import UUID

from playground.accounts.selectors import site_settings
from playground.exceptions import LinkGone, NotFound
from playground.identity import Owner
from playground.sharing.models import ShareLink
from playground.sharing.schemas import LinkOut


def link_get(*, owner: Owner, link_id: UUID) -> ShareLink:
    """Raises NotFound, also when it is somebody else's."""
    link = ShareLink.objects.existing().owned_by(owner).select_related("conversation").filter(pk=link_id).first()
    if link is None:
        raise NotFound("There is no such link.")
    return link


def link_open(token: str) -> ShareLink:
    """What a viewer gets. Raises NotFound for a token that never was, LinkGone for one that is over."""
    link = ShareLink.objects.filter(token=token).first()
    if link is None:
        raise NotFound("There is no such demo.")
    if link.state != "live" or not site_settings().sharing_enabled:
        raise LinkGone
    return link


def links_of(*, owner: Owner) -> list[LinkOut]:
    """Newest first, without snapshots."""
    return [link_out(link) for link in ShareLink.objects.existing().owned_by(owner).defer("snapshot").order_by("-created_at")]


def link_out(link: ShareLink) -> LinkOut:
    return LinkOut(
        id=link.pk,
        url=f"/s/{link.token}",
        title=link.title,
        scope=link.scope,
        state=link.state,
        conversation_id=link.conversation_id,
        created_at=link.created_at,
        published_at=link.published_at,
        expires_at=link.expires_at,
        views=link.views,
        allow_embed=link.allow_embed,
        owner_name=link.owner_name,
    )


def public_snapshot(link: ShareLink) -> dict:
    """All that the page of a viewer knows."""
    return {
        "title": link.title,
        "url": f"/s/{link.token}",
        "owner_name": link.owner_name,
        "expires_at": link.expires_at.isoformat() if link.expires_at else None,
        **link.snapshot,
    }


def last_public_run() -> dict | None:
    """Speed and machine of the newest live link, nothing of its text."""
    link = ShareLink.objects.live().exclude(snapshot={}).order_by("-published_at").first()
    turns = link.snapshot["turns"] if link else []
    answer = turns[-1]["answer"] if turns else None
    if not answer or not answer["trace"] or not site_settings().sharing_enabled:
        return None
    return {
        "recorded_at": link.snapshot["recorded_at"],
        "model": link.snapshot["model"],
        "trace": [entry[1:] for entry in answer["trace"]],
        "timings": answer["timings"],
    }
