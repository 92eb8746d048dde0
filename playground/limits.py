"""What an owner may start. The one check for every door (socket and API)."""

from playground.chat.models import Generation
from playground.config import config
from playground.exceptions import QueueFull, TooManyRequests
from playground.identity import Owner
from playground.schemas import Params


def check_can_generate(owner: Owner, params: Params) -> None:
    """Raises TooManyRequests or QueueFull; nothing has been stored or sent then."""
    if Generation.objects.owned_by(owner).active().count() >= config.max_active_per_owner:
        raise TooManyRequests(f"{config.max_active_per_owner} answers at once are the limit. Stop one, or wait for its end.")
    if Generation.objects.filter(state=Generation.State.QUEUED).count() >= config.max_queued:
        raise QueueFull
