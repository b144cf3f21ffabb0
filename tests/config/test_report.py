# SPDX-License-Identifier: Apache-2.0
"""What a report says: of each replaced node what became of its fields, and what was left alone."""

from dovetail.config import REQUIRED, chain, modify, replace_all
from support.configs import Dense, FeedForward, Identity, Mixture, Norm, Record, square


class Sharp(FeedForward):
    """Has a place for the size of `Dense`."""

    class Config(FeedForward.Config):
        """The size."""

        hidden: int = REQUIRED

    def forward(self, x: float) -> float:
        """Returns `x`."""
        return x


def test_report_says_of_each_field_whether_it_was_taken_over_set_or_dropped():
    cfg = Record(items=[Dense.Config(dim=4, dropout=0.5, hidden=3)])
    (change,) = (
        report := replace_all(Dense.Config, Mixture.Config(num_experts=8), drop=("hidden",)).report(cfg)
    ).changes
    assert change.taken == {"dim": 4, "dropout": 0.5}
    assert change.set == {"num_experts": 8}
    assert change.dropped == {"hidden": 3, "activation": square}
    assert str(report) == (
        "1 node replaced\n"
        "  items[0]: Dense.Config -> Mixture.Config\n"
        "    taken over: dim = 4, dropout = 0.5\n"
        "    set: num_experts = 8\n"
        "    dropped: hidden = 3, activation = support.configs.square"
    )


def test_config_that_is_inside_the_new_one_has_lost_nothing():
    cfg = Record(items=[Dense.Config(dim=4, hidden=3)])
    (change,) = replace_all(Dense.Config, lambda old: Mixture.Config(expert=old)).report(cfg).changes
    assert (change.dropped, change.set) == ({}, {"expert": cfg.items[0]})


def test_report_lists_what_shares_an_interface_with_a_match_and_was_left_alone():
    mixture = Mixture.Config(expert=Dense.Config())
    cfg = Record(items=[Dense.Config(hidden=3), Identity.Config(), Norm.Config(), mixture])
    report = replace_all(Dense.Config, Sharp.Config()).report(cfg)
    assert [(node.path, node.config, node.interface) for node in report.left_alone] == [
        ("items[1]", Identity.Config(), FeedForward.Config),
        ("items[3]", mixture, FeedForward.Config),
    ]
    assert "  items[1]: left alone, Identity.Config shares FeedForward.Config with what is replaced" in str(report)
    assert replace_all(FeedForward.Config, Sharp.Config(), drop="unplaced").report(cfg).left_alone == ()
    assert replace_all(Dense.Config, Sharp.Config(), at="items[0]").report(cfg).left_alone == ()


def test_chain_leaves_alone_what_none_of_its_steps_reaches():
    cfg = Record(items=[Dense.Config(hidden=3), Identity.Config(), Mixture.Config()])
    steps = chain(replace_all(Dense.Config, Sharp.Config()), modify(Identity.Config, lambda old: old.set(dropout=0.5)))
    assert [node.path for node in steps.report(cfg).left_alone] == ["items[2]"]
