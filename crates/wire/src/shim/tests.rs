//! The messages, whole and cut.

use super::*;

fn failure() -> SetupFailure {
    SetupFailure {
        stage: Stage::Mount,
        what: "open".to_owned(),
        path: Some("/opt/tools".to_owned()),
        errno: Some(2),
    }
}

#[test]
fn a_message_cut_at_every_byte_is_read_once_and_whole() {
    let reports = [
        HelperReport::Started {
            version: VERSION,
            notes: vec!["a note".to_owned()],
            layers: Some(ActiveLayers {
                ids: HostIds::Root { slot_uid: 100_001 },
                landlock: 6,
                seccomp: Seccomp::File("/etc/own.json".to_owned()),
            }),
        },
        HelperReport::Failed(failure()),
        HelperReport::Ended {
            end: WireExitStatus::Signal(9),
            killed: 3,
            left: 0,
        },
    ];
    let bytes: Vec<u8> = reports
        .iter()
        .flat_map(|report| encode(report).unwrap())
        .collect();
    for cut in 0..=bytes.len() {
        let mut buffer = Vec::new();
        let mut seen = Vec::new();
        for part in [&bytes[..cut], &bytes[cut..]] {
            buffer.extend_from_slice(part);
            while let Some(report) = take_message::<HelperReport>(&mut buffer).unwrap() {
                seen.push(report);
            }
        }
        assert_eq!(seen, reports, "cut at {cut}");
        assert!(buffer.is_empty());
    }
}

#[test]
fn an_unknown_field_stage_or_word_is_refused() {
    for text in [
        r#"{"failed":{"stage":"mount","what":"open","path":null,"errno":null,"more":1}}"#,
        r#"{"failed":{"stage":"roof","what":"open","path":null,"errno":null}}"#,
        r#"{"ended":{"end":{"code":0},"killed":0,"left":0,"x":0}}"#,
        r#"{"finished":{}}"#,
        "",
    ] {
        assert!(decode::<HelperReport>(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn a_length_beyond_the_bound_is_refused_before_anything_is_read() {
    let mut buffer = u32::MAX.to_le_bytes().to_vec();
    assert!(matches!(
        take_message::<HelperReport>(&mut buffer),
        Err(FrameError::TooLong(_))
    ));
    let long = "x".repeat(limits::SHIM_MESSAGE_BYTES);
    assert!(matches!(encode(&long), Err(FrameError::TooLong(_))));
}

#[test]
fn a_failure_says_stage_thing_reason_and_what_to_do() {
    assert_eq!(
        failure().to_string(),
        "mount: open \"/opt/tools\": No such file or directory (os error 2) (it does not exist \
         on this host: correct the sandbox profile or the path)"
    );
}
