# SPDX-License-Identifier: Apache-2.0
"""Scheduling: policies on traces in one simulator, wrong rates, resampled traces, and the time of a decision.

`python benchmarks/schedule.py JOBS.csv RATES.csv POOLS.toml --picture results/schedule.svg` takes the files that
`dovetail schedule --simulate` takes. Without files it makes a small trace.
"""

import argparse
import random
import time
from collections.abc import Mapping, Sequence

import numpy as np
from _report import counted, header, program, table

from dovetail.launch.schedule import (
    POLICIES,
    Arrival,
    Cluster,
    Demand,
    Objective,
    Outcome,
    Pool,
    Settings,
    Team,
    decide,
    ours,
    placed_greedily,
    read_pools,
    read_rates,
    read_trace,
    simulate,
    wrong,
)
from dovetail.pictures import SMALL, Canvas, Entry, Picture, Scale, draw_legend

SEEDS = 5
SIZES = (10, 100, 300, 1000, 3000, 10_000)
WIDTH, HEIGHT, LEFT, TOP, GAP = 560, 150, 60, 26, 46
COLORS = (5, 0, 4, 3, 1, 2)


def made() -> tuple[Cluster, dict[str, list[Arrival]]]:
    """Returns a small trace, where none is given."""
    rng = random.Random(0)
    kinds = [{(pool, n): rng.uniform(1, 4) * n for pool in ("new", "old")} for n in (1, 1, 2, 4)]
    jobs = []
    for i in range(40):
        kind = rng.randrange(len(kinds))
        jobs.append(Arrival(Demand(f"j{i:02}", kinds[kind], rng.lognormvariate(9, 1)), 400.0 * i, str(kind)))
    return Cluster((Pool(name="new", count=4), Pool(name="old", count=8))), {"made": jobs}


def hours(seconds: float) -> str:
    """Returns hours to two places."""
    return f"{seconds / 3600:.2f}"


def row(name: str, found: Outcome) -> tuple[str, ...]:
    """Returns the figures of an outcome."""
    times = (found.mean, found.median, found.p99, found.waited, found.makespan)
    return name, *map(hours, times), f"{found.restarts:.2f}", f"{found.utilisation:.3f}", f"{found.cpu_seconds:.1f}"


HEAD = ("policy", "mean h", "median h", "p99 h", "waiting h", "last end h", "restarts", "used", "CPU s")


def compare(cluster: Cluster, jobs: Sequence[Arrival]) -> dict[str, Outcome]:
    """Prints and returns what each policy makes of a trace."""
    found = {name: simulate(cluster, jobs, Settings(), make()) for name, make in POLICIES.items()}
    for objective in ("jct", "throughput", "fair", "makespan"):
        found[f"dovetail, {objective}"] = simulate(cluster, jobs, Settings(objective), ours)
    for objective in ("jct", "makespan"):
        name = f"dovetail, {objective}, first starts take 60 s too"
        found[name] = simulate(cluster, jobs, Settings(objective), ours, first=True)
    free = Settings(restart=0.0)
    found["max-min shares, free restarts"] = simulate(cluster, jobs, free, POLICIES["max-min shares"]())
    found["dovetail, jct, free restarts"] = simulate(cluster, jobs, free, ours)
    table(HEAD, [row(*each) for each in found.items()])
    return found


def errors(cluster: Cluster, jobs: Sequence[Arrival]) -> None:
    """Prints what wrong rates cost."""
    asked: Sequence[tuple[Objective, str]] = (("jct", "mean"), ("makespan", "makespan"))
    right, rows = {name: simulate(cluster, jobs, Settings(name), ours) for name, _ in asked}, []
    for error in (0.1, 0.3, 0.6):
        for learns in (True, False):
            cells = []
            for objective, attribute in asked:
                base = getattr(right[objective], attribute)
                costs = []
                for seed in counted("resampling", range(SEEDS), "seeds"):
                    believed = wrong(jobs, error, seed)
                    settings = Settings(objective)
                    found = simulate(cluster, jobs, settings, ours, believed=believed, learns=learns)
                    costs.append(getattr(found, attribute) / base - 1)
                cells += [f"{np.mean(costs):+.1%}", f"{min(costs):+.1%} to {max(costs):+.1%}"]
            rows.append((f"{error:.0%}", "yes" if learns else "no", *cells))
    table(("error", "measured rates replace it", "mean, jct", "of seeds", "last end, makespan", "of seeds"), rows)


def resampled(jobs: Sequence[Arrival], seed: int) -> list[Arrival]:
    """Returns as many jobs, drawn from those of a trace with replacement, with its arrivals."""
    rng = random.Random(seed)
    times = sorted(each.seconds for each in jobs)
    drawn = [rng.choice(jobs) for _ in jobs]
    return [
        each._replace(job=each.job._replace(name=f"r{i:04}"), seconds=seconds)
        for i, (each, seconds) in enumerate(zip(drawn, times, strict=True))
    ]


def elsewhere(cluster: Cluster, jobs: Sequence[Arrival]) -> None:
    """Prints policies on resampled traces."""
    rows = []
    for seed in range(SEEDS):
        some = resampled(jobs, seed)
        simple = {name: simulate(cluster, some, Settings(), make()) for name, make in POLICIES.items()}
        found = simulate(cluster, some, Settings(), ours)
        early = simulate(cluster, some, Settings("makespan"), ours)
        name, best = min(simple.items(), key=lambda each: each[1].mean)
        last = min(each.makespan for each in simple.values())
        cells = (hours(found.mean), f"{found.restarts:.2f}", hours(best.mean), name, hours(early.makespan), hours(last))
        rows.append((seed, *cells))
    head = ("seed", "dovetail, jct: mean h", "restarts", "best of the others", "", "makespan: last end h", "others")
    table(head, rows)


def situation(count: int, seed: int) -> tuple[Cluster, list[Demand]]:
    """Returns elastic jobs of six teams on eight pools that grow with them."""
    rng, scale = np.random.default_rng(seed), count / 1000
    sizes = [(64, 8), (128, 8), (32, 64), (256, 4), (64, 8), (16, 64), (96, 8), (500, 1)]
    pools = tuple(
        Pool(name=f"p{i}", count=max(1, round(blocks * scale)) * block, block=block, spares=i % 2, price=1.0 + i)
        for i, (blocks, block) in enumerate(sizes)
    )
    teams = tuple(Team(name=f"t{k}", quota={pool.name: pool.count // 8 for pool in pools}) for k in range(6))
    speeds, jobs = rng.uniform(0.5, 4, 8), []
    for j in range(count):
        chips, own = 2 ** int(rng.integers(0, 7)), speeds * rng.lognormal(0, 0.4, 8)
        rates = {
            (pool.name, size): float(own[i] * size**0.9)
            for i, pool in enumerate(pools)
            for size in (chips, 2 * chips, 4 * chips)
            if size <= pool.count
        }
        waited, priority = float(rng.uniform(0, 40_000)), float(rng.choice([1, 1, 1, 2, 4]))
        work = float(rng.lognormal(12, 1.5))
        jobs.append(Demand(f"j{j:05}", rates, work, team=f"t{j % 6}", priority=priority, waited=waited))
    return Cluster(pools, teams), jobs


def growth(sizes: Sequence[int]) -> None:
    """Prints how long a decision takes, and how good it is."""
    rows = []
    for count in sizes:
        cluster, jobs = situation(count, 0)
        cells = []
        for objective in ("jct", "makespan"):
            start = time.process_time()
            found = decide(cluster, jobs, Settings(objective))
            cells += [f"{time.process_time() - start:.2f}", f"{found.value / found.bound:.1%}"]
        alone, jobs = Cluster(cluster.pools), [job._replace(team="") for job in jobs]
        density = placed_greedily(alone, jobs, Settings()) / decide(alone, jobs, Settings(exact=0)).bound
        rows.append((f"{count:,}", found.method, *cells, f"{density:.1%}"))
    table(("jobs", "method", "jct: CPU s", "of the bound", "makespan: CPU s", "of the bound", "densest first"), rows)


def picture(found: Mapping[str, Outcome]) -> Picture:
    """Returns chips that are held, and jobs that wait, over time."""
    shown = [*POLICIES, "dovetail, jct"]
    end = min(max(each.makespan for each in found.values()), 2 * found["dovetail, jct"].makespan)
    most = float(max(waiting for name in shown for _, _, waiting in found[name].line) or 1)
    lines = [
        {name: _smoothed([(seconds, each[panel] / top) for seconds, *each in found[name].line], end) for name in shown}
        for panel, top in enumerate((1.0, most))
    ]
    return drawn(lines, end, most)


def drawn(lines: Sequence[Mapping[str, Sequence[tuple[float, float]]]], end: float, most: float) -> Picture:
    """Returns two panels of lines: the share of chips that are held, and that of `most` jobs waiting, by seconds."""
    canvas = Canvas(LEFT + WIDTH + 220, "chips held, and jobs waiting, per policy")
    across = Scale(0.0, end, LEFT, LEFT + WIDTH)
    for panel, (title, top) in enumerate([("chips held, of all", 1.0), ("jobs waiting", most)]):
        base = TOP + panel * (HEIGHT + GAP) + HEIGHT
        up = Scale(0.0, 1.0, base, base - HEIGHT)
        canvas.text(LEFT, base - HEIGHT - 8, title, bold=True)
        for part in (0.0, 0.5, 1.0):
            canvas.line(LEFT, up.place(part), LEFT + WIDTH, up.place(part))
            canvas.text(LEFT - 8, up.place(part) + 4, f"{part * top:.4g}", "dim", anchor="end", size=SMALL)
        for name, color in zip(lines[panel], COLORS, strict=True):
            line = [(across.place(seconds), up.place(share)) for seconds, share in lines[panel][name]]
            canvas.path(line, color, width=2.2 if name.startswith("dovetail") else 1.2)
        for tick in range(0, int(end / 3600) + 1, 5):
            canvas.text(across.place(tick * 3600), base + 16, str(tick), "dim", anchor="middle", size=SMALL)
    canvas.text(LEFT + WIDTH / 2, TOP + 2 * HEIGHT + GAP + 34, "hours", "dim", anchor="middle")
    entries = [Entry(name, color, "") for name, color in zip(lines[0], COLORS, strict=True)]
    draw_legend(canvas, LEFT + WIDTH + 16, TOP, 200, entries)
    return canvas.picture(TOP + 2 * HEIGHT + GAP + 46)


def _smoothed(steps: Sequence[tuple[float, float]], end: float) -> list[tuple[float, float]]:
    """Returns the means of half hours, in the middle of each."""
    sums: dict[int, list[float]] = {}
    for seconds, value in steps:
        if seconds <= end:
            sums.setdefault(int(seconds // 1800), []).append(value)
    return [(min((at + 0.5) * 1800, end), sum(values) / len(values)) for at, values in sorted(sums.items())]


def main() -> None:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", metavar="FILE", help="JOBS.csv RATES.csv POOLS.toml")
    parser.add_argument("--picture", metavar="FILE.svg", help="where to draw the first trace")
    args = parser.parse_args()
    header("Scheduling", ("dovetail", "scipy"))
    if args.files:
        jobs, rates, pools = args.files
        cluster = Cluster(read_pools(pools))
        traces = read_trace(jobs, read_rates(rates, cluster.pools), cluster.pools)
    else:
        cluster, traces = made()
    for number, (name, arrivals) in enumerate(traces.items()):
        print(f"## {name}: {len(arrivals)} jobs\n")
        found = compare(cluster, arrivals)
        print("Rates that are wrong:\n")
        errors(cluster, arrivals)
        print("Resampled:\n")
        elsewhere(cluster, arrivals)
        if args.picture and not number:
            picture(found).save(args.picture)
    print("## One decision\n")
    growth(SIZES if args.files else SIZES[:4])


if __name__ == "__main__":
    program(main)
