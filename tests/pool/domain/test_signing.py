"""What all hosts derive from the shared secret, so it must never change by accident."""

from pool.domain.signing import derive_engine_key, derive_internal_token, digest_key, sign_table


def test_everything_derived_differs() -> None:
    derived = {
        derive_engine_key("s", replica_id="r1", generation=1),
        derive_engine_key("s", replica_id="r1", generation=2),
        derive_engine_key("s", replica_id="r2", generation=1),
        derive_engine_key("t", replica_id="r1", generation=1),
        digest_key("s", "sk-1"),
        derive_internal_token("s"),
        sign_table("s", b"payload"),
    }

    assert len(derived) == 7
    assert {len(value) for value in derived} == {64}


def test_the_derivation_is_the_agreed_one() -> None:
    key = derive_engine_key("s", replica_id="r1", generation=1)

    assert digest_key("s", "k") == "1e23d8488ca0b02cc5ae5288f84e0058c1edad8012370985deb02f97f9d9d292"
    assert key == "af958fbd70de70c05370ad9868dc24249c709692221f802167831d88c6929fa8"


def test_the_secret_may_be_text_or_bytes() -> None:
    assert digest_key("s", "k") == digest_key(b"s", "k")
