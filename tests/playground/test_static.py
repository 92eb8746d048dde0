"""Files of the bundle."""

from pathlib import Path

import pytest
from django.contrib.staticfiles import finders
from django.http import HttpRequest, HttpResponse
from django.test import AsyncRequestFactory

from playground.middleware import StaticFilesMiddleware


async def not_static(request: HttpRequest) -> HttpResponse:
    return HttpResponse(status=418)


@pytest.mark.asyncio
async def test_a_file_that_has_gone_since_the_start_is_a_404_at_once(tmp_path: Path, settings):
    file = tmp_path / "app-1a2b3c.js"
    file.write_text("let a = 1;")
    settings.STATICFILES_DIRS = [tmp_path]
    finders.get_finder.cache_clear()
    serve = StaticFilesMiddleware(not_static)
    finders.get_finder.cache_clear()
    request = AsyncRequestFactory().get("/static/app-1a2b3c.js")
    there = await serve(request)
    assert there.status_code == 200 and b"".join([part async for part in there]) == b"let a = 1;"
    file.unlink()
    gone = await serve(request)
    assert gone.status_code == 404 and b"Restart the server" in gone.content
    assert (await serve(AsyncRequestFactory().get("/static/never.js"))).status_code == 418
