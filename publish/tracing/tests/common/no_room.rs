// Values that a record has no room for together. The file that includes this has `subscriber`.

use tracing::field::Empty;
use tracing::info_span;

const NAMES: [&str; 4] = ["first", "second", "third", "fourth"];

fn publish() {
    let process = otelctx::ProcessContext::new().with_service_name("test").publish();
    std::mem::forget(process.unwrap());
}

/// The attributes that readers see, and how many bytes they take.
fn seen() -> (Vec<(String, String)>, usize) {
    let attributes = otelctx::visible_to_readers().unwrap().attributes;
    // Each has a header of 2 bytes.
    let size = attributes.iter().map(|(_, value)| 2 + value.len()).sum();
    (attributes, size)
}

fn attributes(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(pair).collect()
}

#[test]
fn values_that_have_no_room_together_are_counted_and_the_others_are_seen() {
    tracing::subscriber::with_default(subscriber(), || {
        let [a, b, c, d] = [("a", 255), ("b", 255), ("c", 97), ("d", 96)]
            .map(|(letter, length)| letter.repeat(length));
        let before = otelctx_tracing::truncated();
        // 257 + 257 + 98 = 612.
        let full = info_span!("full", first = a, second = b, fourth = d).entered();
        let all = attributes(&[("first", &a), ("second", &b), ("fourth", &d)]);
        assert_eq!(seen(), (all.clone(), 612));
        assert_eq!(otelctx_tracing::truncated(), before);

        // One byte more: this value is left out, not the ones after it.
        let over = info_span!(parent: None, "over", first = a, second = b, third = c, fourth = d);
        over.in_scope(|| assert_eq!(seen(), (all.clone(), 612)));
        assert_eq!(otelctx_tracing::truncated(), before + 1);

        // What a child adds comes first if its name does.
        let others = attributes(&[("first", &a), ("second", &b), ("third", "x")]);
        info_span!("child", third = "x").in_scope(|| assert_eq!(seen(), (others.clone(), 517)));
        assert_eq!(otelctx_tracing::truncated(), before + 2);
        drop(full);

        // Late values take the place of others, and make room for them again.
        let late = info_span!("late", first = a, second = b, third = Empty, fourth = d).entered();
        assert_eq!(seen(), (all, 612));
        late.record("third", "x");
        assert_eq!(seen(), (others, 517));
        assert_eq!(otelctx_tracing::truncated(), before + 3);
        late.record("second", "short");
        let short = [("first", &*a), ("second", "short"), ("third", "x"), ("fourth", &d)];
        assert_eq!(seen(), (attributes(&short), 365));
        assert_eq!(otelctx_tracing::truncated(), before + 3);
    });
    assert_eq!(otelctx::visible_to_readers(), None);
}
