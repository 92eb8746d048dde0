"""The benchmark's report as text for people."""


def text(report: dict) -> str:
    """Aligned lines; every figure with what it was measured on."""
    info, speed = report["engine"], report["speed"]
    lines = [
        f"model          {info['model']} ({info['parameters'] / 1e9:.3f} B parameters, {info['bytes_per_token'] / 1e9:.3f} GB per token)",
        f"device         {info['gpus']} x {info['device']}, driver {report['driver']}"
        if info["gpus"]
        else f"device         {info['device']}",
        f"software       torch {report['torch']}, triton {report['triton']}",
        f"backend        {info['backend']} ({report['kernel']}), {info['dtype']}, batch 1, {_choice(report.get('sampling'))}",
        f"lengths        {speed['prompt_tokens']} prompt tokens, {speed['output_tokens']} output tokens, median of {speed['runs']} runs",
        f"decode         {speed['decode_tokens_per_s']:,.1f} tokens/s (from {speed['decode_tokens_per_s_min']:,.1f} "
        f"to {speed['decode_tokens_per_s_max']:,.1f})",
        f"TTFT           {speed['ttft_ms']:.2f} ms (at most {speed['ttft_ms_max']:.2f})",
    ]
    if report["read_bandwidth"]:
        lines.append(
            f"read bandwidth {report['read_bandwidth'] / 1e12:.2f} TB/s measured; bound {report['bound_tokens_per_s']:,.0f} tokens/s; "
            f"MBU {report['mbu_measured']:.1%} of measured"
            + (f", {report['mbu_datasheet']:.1%} of datasheet" if report["mbu_datasheet"] else "")
        )
    if report.get("exchange"):
        lines.append(_exchange_line(report["exchange"], speed["decode_tokens_per_s"]))
    for phase in report.get("profile") or []:
        lines.append(
            f"phase          {phase['name']:22} x{phase['count']:<3} work {phase['work_us']:7.1f} us (slowest {phase['slowest_us']:7.1f}), "
            f"wait {phase['wait_us']:6.1f} us, {phase['bytes'] / 1e6:7.1f} MB"
        )
    return "\n".join(lines)


def _choice(sampling: dict | None) -> str:
    if not sampling or not sampling["temperature"]:
        return "greedy"
    return f"temperature {sampling['temperature']:g}, top-k {sampling['top_k']}, top-p {sampling['top_p']:g}"


def _exchange_line(exchange: dict, tokens_per_s: float) -> str:
    times = {kind: exchange[f"{kind}_wait_us"] for kind in ("delayed", "present", "agreement")}
    waits = ", ".join(f"{kind} {time:.1f} us ({time * tokens_per_s / 1e6:.1%})" for kind, time in times.items())
    layer = (times["delayed"] + times["present"]) / exchange["layers"]
    return (
        f"exchange       waits per token: {waits}; {layer:.2f} us a layer; "
        f"{exchange['pushed_bytes'] * tokens_per_s / 1e9:.1f} GB/s pushed by each GPU"
    )


def form_text(form: dict) -> str:
    """One form of the rival."""
    cached = ", from the cache" if form["cached"] else ""
    return (
        f"rival          {form['name']}: {form['decode_tokens_per_s']:,.1f} tokens/s (from {form['decode_tokens_per_s_min']:,.1f} "
        f"to {form['decode_tokens_per_s_max']:,.1f}), ready after {form['compile_s']:.0f} s{cached}; "
        f"its first {form['equal_tokens']} tokens equal those of the first form"
    )


def rival_text(rival: dict) -> str:
    """The best form and the ratio."""
    if rival["best"] is None:
        return "rival          no form of PyTorch ran, so there is no ratio"
    return f"best rival     PyTorch, {rival['best']}; this engine is {rival['ratio']:.2f} x"
