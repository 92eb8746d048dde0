"""``/metrics`` for Prometheus, with names shaped like vLLM's. Counters come from the rollups and the rows not yet rolled up into
them, gauges from Redis: every web process gives the same answer, and none has a count of its own to lose."""

import hmac
from collections.abc import Iterator

import redis
from django.db.models import Sum
from django.http import HttpRequest, HttpResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from playground import streams
from playground.chat.models import Generation
from playground.config import config
from playground.usage.histograms import lower_edge, merged
from playground.usage.models import SUMS, Refusals, UsageRollup
from playground.usage.services import rollup_update

PREFIX = "playground"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
TOKEN_SECONDS = (0.0002, 0.0003, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1)


def metrics(request: HttpRequest) -> HttpResponse:
    """Open to staff, to the bearer of METRICS_TOKEN, and, without such a token, to this machine itself."""
    if not _may_read(request):
        return HttpResponse("Give METRICS_TOKEN as a bearer token.\n", status=403, content_type="text/plain")
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Usage())
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


def _may_read(request: HttpRequest) -> bool:
    if request.user.is_authenticated and request.user.is_staff:
        return True
    if config.metrics_token:
        return hmac.compare_digest(request.headers.get("Authorization", "").encode(), f"Bearer {config.metrics_token}".encode())
    local = request.META.get("REMOTE_ADDR") in ("127.0.0.1", "::1")
    return local and "X-Forwarded-For" not in request.headers


class _Usage(Collector):
    def collect(self) -> Iterator[Metric]:
        rollup_update()
        rows = UsageRollup.objects.filter(kind=UsageRollup.Kind.ALL, subject="", period=UsageRollup.Period.DAY)
        yield from _counters(rows)
        yield from _histograms(rows)
        yield from _gauges()


def _counters(rows) -> Iterator[Metric]:
    prompt = CounterMetricFamily(f"{PREFIX}:prompt_tokens", "Prompt tokens processed.", labels=["model_name"])
    output = CounterMetricFamily(f"{PREFIX}:generation_tokens", "Tokens generated.", labels=["model_name"])
    for row in rows.values("model").annotate(**{name: Sum(name) for name in SUMS}):
        prompt.add_metric([row["model"]], row["prompt_tokens"])
        output.add_metric([row["model"]], row["completion_tokens"])
    success = CounterMetricFamily(f"{PREFIX}:request_success", "Ended requests.", labels=["model_name", "finished_reason"])
    failed = CounterMetricFamily(f"{PREFIX}:request_errors", "Requests that ended with an error.", labels=["model_name", "error"])
    for model, found in _by_model(rows, "finishes").items():
        for reason, count in found.items():
            success.add_metric([model, reason], count)
    for model, found in _by_model(rows, "errors").items():
        for error, count in found.items():
            failed.add_metric([model, error], count)
    refused = CounterMetricFamily(f"{PREFIX}:request_refused", "Requests refused before they were queued.", labels=["model_name", "error"])
    for model, code, count in Refusals.objects.values_list("model", "code").annotate(n=Sum("requests")):
        refused.add_metric([model, code], count)
    yield from (prompt, output, success, failed, refused)


def _by_model(rows, name: str) -> dict[str, dict[str, int]]:
    out: dict[str, dict[str, int]] = {}
    for model, tally in rows.values_list("model", name):
        sums = out.setdefault(model, {})
        for key, count in tally.items():
            sums[key] = sums.get(key, 0) + count
    return out


def _histograms(rows) -> Iterator[Metric]:
    ms = 1 / 1000
    yield _histogram(rows, "ttft", "time_to_first_token_seconds", "Request received to first token.", SECONDS, lambda value: value * ms)
    yield _histogram(rows, "queue", "request_queue_time_seconds", "Accepted to taken by an engine.", SECONDS, lambda value: value * ms)
    yield _histogram(rows, "total", "e2e_request_latency_seconds", "Engine time of the whole request.", SECONDS, lambda value: value * ms)
    about = "Mean time between tokens; one observation a request."
    yield _histogram(rows, "rate", "inter_token_latency_seconds", about, TOKEN_SECONDS, lambda value: 1 / value)


def _histogram(rows, field: str, name: str, about: str, bounds: tuple, seconds) -> Metric:
    """From log-scale buckets of the rollups: a value counts as its bucket's centre, so bounds and sum are within 2.5 %."""
    family = HistogramMetricFamily(f"{PREFIX}:{name}", about, labels=["model_name"])
    for model in rows.values_list("model", flat=True).distinct().order_by("model"):
        histogram = merged(rows.filter(model=model).values_list(field, flat=True))
        values = [(seconds(lower_edge(bucket) * 1.025), count) for bucket, count in histogram.items()]
        buckets = [(str(float(bound)), sum(count for value, count in values if value <= bound)) for bound in bounds]
        buckets.append(("+Inf", sum(count for _, count in values)))
        family.add_metric([model], buckets, sum(value * count for value, count in values))
    return family


def _gauges() -> Iterator[Metric]:
    running = GaugeMetricFamily(f"{PREFIX}:num_requests_running", "Requests on an engine.", labels=["model_name"])
    for model in Generation.objects.filter(state=Generation.State.RUNNING).values_list("model", flat=True).distinct():
        running.add_metric([model], Generation.objects.filter(state=Generation.State.RUNNING, model=model).count())
    waiting = GaugeMetricFamily(f"{PREFIX}:num_requests_waiting", "Requests in the queue.")
    up = GaugeMetricFamily(f"{PREFIX}:engine_up", "1: the engine can answer.", labels=["worker", "engine", "model_name"])
    used = GaugeMetricFamily(f"{PREFIX}:gpu_memory_used_bytes", "Memory in use on the engine's GPUs.", labels=["worker", "engine"])
    total = GaugeMetricFamily(f"{PREFIX}:gpu_memory_total_bytes", "Memory of the engine's GPUs.", labels=["worker", "engine"])
    try:
        waiting.add_metric([], streams.queue_length())
        reports = streams.workers()
    except redis.RedisError:
        reports = {}
    for worker, report in reports.items():
        for engine in report["engines"]:
            up.add_metric([worker, engine["engine"], engine["model"]], engine["state"] in ("ready", "busy"))
            if engine.get("memory") and (engine["info"] or {}).get("gpus"):
                used.add_metric([worker, engine["engine"]], engine["memory"]["used"])
                total.add_metric([worker, engine["engine"]], engine["memory"]["total"])
    yield from (running, waiting, up, used, total)
