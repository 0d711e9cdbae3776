//! Checklists as people and agents write them.

use proptest::prelude::*;

use super::*;

fn item_lines(text: &str) -> Vec<String> {
    let list = Checklist::parse(text).unwrap();
    let told = |item: &ChecklistItem| {
        let mark = if item.done { 'x' } else { '-' };
        format!("{mark}{} {}", item.depth, item.text)
    };
    list.items().iter().map(told).collect()
}

#[test]
fn items_of_every_spelling_are_found() {
    let text = "# Plan\n\n- [ ] one\n* [x] two\n+ [X] three\r\n1. [ ] four\r\n  2) [ ] five\n-\t[ ] six\n\
                - [ ]   seven  \n";
    assert_eq!(
        item_lines(text),
        [
            "-0 one", "x0 two", "x0 three", "-0 four", "-0 five", "-0 six", "-0 seven"
        ]
    );
}

#[test]
fn what_only_looks_like_an_item_is_none() {
    let text = "-[ ] no blank\n- [] none\n- [y] other\n- [ ]\n- [ ]no\n[ ] no bullet\n- [ x] two\n\
                1234567890. [ ] a year\n--- [ ] rule\n> - [ ] quoted\nword - [ ] inside\n";
    assert_eq!(item_lines(text), Vec::<String>::new());
}

#[test]
fn depth_follows_the_lists() {
    let text = "- [ ] a\n  - [ ] b\n    1. [ ] c\n       - [ ] d\n  - [ ] e\n- plain\n  - [ ] f\n\
                \n\n- [ ] g\n\t- [ ] h\n- - [ ] i\n";
    assert_eq!(
        item_lines(text),
        [
            "-0 a", "-1 b", "-2 c", "-3 d", "-1 e", "-0 f", "-0 g", "-1 h", "-0 i"
        ]
    );
}

#[test]
fn code_is_no_item() {
    let text = "- [ ] a\n\n      - [ ] code of a\n\n```\n- [ ] fenced\n~~~\n- [ ] still\n```\n- [ ] b\n\
                \n    - [ ] child of nobody\n\ntext\n\n    - [ ] code\n\n~~~~ md\n- [ ] fenced\n~~~\n- [ ] still\n~~~~~\n\
                - [ ] c\n  ```\n  - [ ] fenced in c\n- [ ] d\n-     [ ] code in a list\n";
    // Four columns below `- [ ] b`, whose content is at the second, are not code there.
    assert_eq!(
        item_lines(text),
        ["-0 a", "-0 b", "-1 child of nobody", "-0 c", "-0 d"]
    );
    assert_eq!(
        item_lines("```\n- [ ] never closed\n"),
        Vec::<String>::new()
    );
    assert_eq!(item_lines("``` a`b\n- [ ] no fence\n"), ["-0 no fence"]);
    assert_eq!(
        item_lines("- ```\n  - [ ] fenced\n  ```\n- [ ] a\n"),
        ["-0 a"]
    );
}

#[test]
fn an_item_stays_itself_while_others_are_edited_moved_and_ticked() {
    let before = "- [ ] build\n- [ ] test\n- [ ] test\n- [ ] ship\n";
    let list = Checklist::parse(before).unwrap();
    let ids: Vec<ItemId> = list.items().iter().map(|item| item.id).collect();
    let after = "# New head\n\n- [x] ship\n  - [ ] new one\n* [ ] test\n- [ ] test\n\nwords\n1. [x] build\n";
    let now = Checklist::parse(after).unwrap();
    let line = |id| now.item(id).map(|item| item.line);
    assert_eq!(
        ids.iter().map(|id| line(*id)).collect::<Vec<_>>(),
        [Some(9), Some(5), Some(6), Some(3)]
    );
    let added = now.diff_from(&list);
    assert_eq!(added.added.len(), 1);
    assert_eq!(added.added[0].text, "new one");
    assert!(added.removed.is_empty());
    let ticked = tick(after, ids[2]).unwrap();
    assert_eq!(ticked, after.replace("- [ ] test", "- [x] test"));
    let fewer = "- [ ] test\n- [ ] ships\n";
    assert_eq!(
        tick(fewer, ids[2]),
        Err(ChecklistError::ItemRemoved(ids[2]))
    );
    assert_eq!(
        tick(fewer, ids[3]),
        Err(ChecklistError::ItemRemoved(ids[3]))
    );
    let gone = Checklist::parse(fewer).unwrap().diff_from(&list).removed;
    assert_eq!(gone.len(), 3);
}

#[test]
fn a_tick_is_one_byte_and_can_be_taken_back() {
    let text = "- [X] a\r\n- [ ] ü\r\nend";
    let list = Checklist::parse(text).unwrap();
    let (a, u) = (list.items()[0].id, list.items()[1].id);
    assert_eq!(tick(text, u).unwrap(), "- [X] a\r\n- [x] ü\r\nend");
    assert_eq!(tick(text, a).unwrap(), text, "ticked already");
    assert_eq!(untick(text, a).unwrap(), "- [ ] a\r\n- [ ] ü\r\nend");
    assert_eq!(untick(text, u).unwrap(), text);
    assert_eq!(list.progress(), Progress { done: 1, total: 2 });
}

#[test]
fn an_id_is_written_and_read_in_one_way() {
    let list = Checklist::parse("- [ ] a\n- [ ] a\n").unwrap();
    let id = list.items()[1].id;
    let text = id.to_string();
    assert!(text.ends_with("-2"), "{text}");
    assert_eq!(ItemId::parse(&text), Some(id));
    for bad in [
        "",
        "-1",
        &text.to_uppercase().replace('-', "-0"),
        &text.replace("-2", "-0"),
        &text.replace("-2", "-02"),
        &text.replace("-2", "-+2"),
        &text[1..],
    ] {
        assert_eq!(ItemId::parse(bad), None, "{bad}");
    }
}

#[test]
fn bounds_are_said() {
    let long = "x".repeat(TEXT_BYTES + 1);
    assert!(matches!(
        Checklist::parse(&long),
        Err(ChecklistError::TooLarge { .. })
    ));
    let many = "- [ ] x\n".repeat(ITEMS);
    assert_eq!(Checklist::parse(&many).unwrap().items().len(), ITEMS);
    let more = "- [ ] x\n".repeat(ITEMS + 1);
    assert_eq!(Checklist::parse(&more), Err(ChecklistError::TooManyItems));
}

#[test]
fn agents_add_items_within_a_bound() {
    let text = "- [ ] a\r\n- [x] b";
    let next = append(text, &["c ", "a"], 0).unwrap();
    assert_eq!(next, "- [ ] a\r\n- [x] b\r\n- [ ] c\r\n- [ ] a\r\n");
    let before = Checklist::parse(text).unwrap();
    assert_eq!(
        Checklist::parse(&next)
            .unwrap()
            .diff_from(&before)
            .added
            .len(),
        2
    );
    assert!(append(text, &["c"], AGENT_ITEMS - 1).is_ok());
    assert_eq!(
        append(text, &["c"], AGENT_ITEMS),
        Err(ChecklistError::TooManyAdded {
            added: AGENT_ITEMS + 1
        })
    );
    for bad in ["", "  ", "a\n- [ ] b", "a\rb"] {
        assert!(append(text, &[bad], 0).is_err(), "{bad:?}");
    }
    assert!(append("```\n- [ ] open fence\n", &["c"], 0).is_err());
}

/// Lines of which a strange plan may be made.
fn lines() -> impl Strategy<Value = String> {
    let mark = prop_oneof!["-", "\\*", "\\+", "[0-9]{1,10}[.)]", "- -", ""];
    let state = prop_oneof!["\\[ \\] ", "\\[x\\] ", "\\[X\\]\t", "\\[\\] ", ""];
    let line = (
        "[ \t]{0,7}",
        mark,
        "[ \t]{0,6}",
        state,
        "[abü`~\\[\\]x ]{0,4}",
        "\r?\n",
    )
        .prop_map(|(a, b, c, d, e, f)| format!("{a}{b}{c}{d}{e}{f}"));
    let fence = "[ ]{0,4}(```|~~~)[a`]?\n";
    proptest::collection::vec(prop_oneof![6 => line, 1 => fence], 0..30)
        .prop_map(|lines| lines.concat())
}

proptest! {
    #[test]
    fn a_tick_of_any_item_changes_its_byte_and_its_state_alone(text in lines()) {
        let list = Checklist::parse(&text).unwrap();
        for (at, item) in list.items().iter().enumerate() {
            let next = if item.done { untick(&text, item.id) } else { tick(&text, item.id) };
            let next = next.unwrap();
            prop_assert_eq!(next.len(), text.len());
            let differ: Vec<usize> = (0..text.len())
                .filter(|at| text.as_bytes()[*at] != next.as_bytes()[*at])
                .collect();
            prop_assert_eq!(differ.len(), 1);
            let mut expect = list.clone();
            expect.items[at].done = !item.done;
            prop_assert_eq!(Checklist::parse(&next).unwrap(), expect);
        }
        let ids: std::collections::HashSet<_> = list.items().iter().map(|item| item.id).collect();
        prop_assert_eq!(ids.len(), list.items().len());
    }

    #[test]
    fn no_text_is_too_strange(text in "\\PC*", cut in 0_usize..40) {
        let text: String = text.chars().skip(cut).collect();
        prop_assert!(Checklist::parse(&text).is_ok());
    }
}
