//! Signatures of results beside those of minisign.

use std::{
    fs,
    process::{Command, Output},
};

use weir_testkit::{Program, TempDir};

fn lab(directory: &TempDir, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-bench"));
    command.args(arguments).current_dir(directory.path()).output().expect("the program starts")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A directory with a result that is signed by a key of the lab, `lab.key`.
fn signed() -> TempDir {
    let directory = TempDir::new();
    directory.write("result.json", r#"{"schema": "weir-bench/result/1"}"#);
    for arguments in [&["sign", "--new-key", "lab.key"][..], &["sign", "--key", "lab.key", "result.json"]] {
        let output = lab(&directory, arguments);
        assert!(output.status.success(), "{}", text(&output));
    }
    directory
}

#[test]
fn a_result_that_has_changed_is_told_by_the_exit_status() {
    let directory = signed();
    directory.write("other.json", "{}");
    let output = lab(&directory, &["sign", "--key", "lab.key", "other.json"]);
    assert!(output.status.success(), "{}", text(&output));
    let verify = ["verify", "--key", "lab.key.pub", "other.json", "result.json"];
    let output = lab(&directory, &verify);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(text(&output).contains("file:result.json"), "{}", text(&output));
    directory.write("other.json", "{ }");
    let output = lab(&directory, &verify);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let printed = text(&output);
    assert!(printed.contains("other.json: has changed since it was signed"), "{printed}");
    assert!(printed.contains("result.json: signed by"), "the others are verified as well: {printed}");
    let again = lab(&directory, &["sign", "--new-key", "lab.key"]);
    assert_eq!(again.status.code(), Some(2), "a key is not overwritten: {}", text(&again));
}

#[test]
fn minisign_verifies_what_the_lab_has_signed() {
    let Some(mut minisign) = Program::find("minisign") else { return };
    let directory = signed();
    let verify = ["-V", "-p", "lab.key.pub", "-m", "result.json"];
    let output = minisign.args(verify).current_dir(directory.path()).output().expect("it starts");
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("file:result.json"), "with its comment: {}", text(&output));
    directory.write("result.json", "{}");
    let output = minisign.output().expect("it starts");
    assert!(!output.status.success(), "{}", text(&output));
}

#[test]
fn the_lab_verifies_what_minisign_has_signed_and_signs_with_its_keys() {
    let Some(program) = Program::find("minisign") else { return };
    let directory = signed();
    let minisign = |arguments: &str| {
        let mut command = Command::new(program.get_program());
        command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = command.args(arguments.split(' ')).current_dir(directory.path()).output().expect("it starts");
        assert!(output.status.success(), "{arguments}: {}", text(&output));
    };
    minisign("-G -W -p its.pub -s its.key");
    minisign("-S -W -s its.key -m result.json");
    let verify = ["verify", "--key", "its.pub", "result.json"];
    let output = lab(&directory, &verify);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let output = lab(&directory, &["verify", "--key", "lab.key.pub", "result.json"]);
    assert_eq!(output.status.code(), Some(1), "signed by another key: {}", text(&output));
    let key = fs::read_to_string(directory.join("its.pub")).expect("it is there");
    let key = key.lines().nth(1).expect("a comment and a key");
    let output = lab(&directory, &["sign", "--key", "its.key", "result.json"]);
    assert!(output.status.success(), "{}", text(&output));
    minisign("-V -p its.pub -m result.json");
    let output = lab(&directory, &["verify", "--key", key, "result.json"]);
    assert_eq!(output.status.code(), Some(0), "the key itself: {}", text(&output));
}
