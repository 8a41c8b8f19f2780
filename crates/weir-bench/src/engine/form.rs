//! Writes forms in several parts (RFC 7578).

use super::plan::{FormPart, LoadPlan, RequestBody};

/// What stands between two parts. No part may contain it.
const BOUNDARY: &str = "weir-load-5c0e8f1a7b3d4926";

/// The plan with the content types of its forms.
pub(super) fn with_form_types(plan: &LoadPlan) -> LoadPlan {
    let mut plan = plan.clone();
    for request in &mut plan.requests {
        if !matches!(request.body, RequestBody::Multipart(_)) {
            continue;
        }
        let given = request.headers.iter_mut().find(|(name, _)| name.eq_ignore_ascii_case("content-type"));
        match given {
            None => {
                let value = format!("multipart/form-data; boundary={BOUNDARY}");
                request.headers.push(("Content-Type".to_owned(), value));
            }
            // A receiver cannot tell the parts apart without it.
            Some((_, value)) if !value.to_ascii_lowercase().contains("boundary=") => {
                *value = format!("{value}; boundary={BOUNDARY}");
            }
            Some(_) => {}
        }
    }
    plan
}

/// A piece of a form: what is always sent as it is, or a value of the plan, which may contain `${name}`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FormPiece {
    Fixed(Vec<u8>),
    Value(String),
}

/// The body of a form; the error says which part is wrong.
pub(super) fn written(parts: &[FormPart]) -> Result<Vec<u8>, String> {
    let pieces = pieces(parts)?;
    let bytes = pieces.iter().map(|piece| match piece {
        FormPiece::Fixed(bytes) => bytes.as_slice(),
        FormPiece::Value(text) => text.as_bytes(),
    });
    Ok(bytes.collect::<Vec<_>>().concat())
}

/// The pieces of a form in their order; the error says which part is wrong.
pub(super) fn pieces(parts: &[FormPart]) -> Result<Vec<FormPiece>, String> {
    let (mut pieces, mut body) = (Vec::new(), Vec::new());
    for (index, part) in parts.iter().enumerate() {
        let wrong = |problem: &str| format!("multipart[{index}]: {problem}");
        let FormPart { name, value, file, content_type } = part;
        let (content, file_name) = match (value, file) {
            (Some(value), None) => (value.clone().into_bytes(), None),
            (None, Some(path)) => {
                let read = std::fs::read(path);
                let content = read.map_err(|error| wrong(&format!("cannot read {}: {error}", path.display())))?;
                (content, path.file_name().map(|name| name.to_string_lossy().into_owned()))
            }
            _ => return Err(wrong("needs a `value` or a `file`, and not both")),
        };
        if memchr::memmem::find(&content, BOUNDARY.as_bytes()).is_some() {
            return Err(wrong("contains the text between two parts; use another file"));
        }
        let usual = file.is_some().then_some("application/octet-stream");
        let content_type = content_type.as_deref().or(usual);
        if content_type.is_some_and(|text| text.contains(['\r', '\n'])) {
            return Err(wrong("`type` contains a line break"));
        }
        body.extend_from_slice(
            format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{}\"", quoted(name)).as_bytes(),
        );
        if let Some(file_name) = file_name {
            body.extend_from_slice(format!("; filename=\"{}\"", quoted(&file_name)).as_bytes());
        }
        if let Some(content_type) = content_type {
            body.extend_from_slice(format!("\r\nContent-Type: {content_type}").as_bytes());
        }
        body.extend_from_slice(b"\r\n\r\n");
        match value {
            Some(value) => {
                pieces.push(FormPiece::Fixed(std::mem::take(&mut body)));
                pieces.push(FormPiece::Value(value.clone()));
            }
            None => body.extend_from_slice(&content),
        }
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
    pieces.push(FormPiece::Fixed(body));
    Ok(pieces)
}

/// A name as browsers write it between quotes.
fn quoted(name: &str) -> String {
    name.replace('"', "%22").replace('\r', "%0D").replace('\n', "%0A")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str, value: &str) -> FormPart {
        FormPart { name: name.to_owned(), value: Some(value.to_owned()), ..FormPart::default() }
    }

    #[test]
    fn form_is_written_in_parts() {
        let typed = FormPart { content_type: Some("text/csv".to_owned()), ..part("a\"b", "1,2") };
        let body = written(&[part("user", "${id}"), typed]).expect("a good form");
        assert_eq!(
            String::from_utf8_lossy(&body),
            format!(
                "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"user\"\r\n\r\n${{id}}\r\n--{BOUNDARY}\r\n\
                 Content-Disposition: form-data; name=\"a%22b\"\r\nContent-Type: text/csv\r\n\r\n1,2\r\n--{BOUNDARY}--\r\n"
            )
        );
    }

    #[test]
    fn given_type_of_a_form_gets_the_boundary() {
        let typed = |headers: &[(&str, &str)]| {
            let mut plan = LoadPlan::closed("http://a/", 1, crate::engine::StopCondition::after_count(1));
            plan.requests[0].body = RequestBody::Multipart(vec![part("a", "b")]);
            plan.requests[0].headers = headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            with_form_types(&plan).requests[0].headers[0].1.clone()
        };
        assert_eq!(typed(&[]), format!("multipart/form-data; boundary={BOUNDARY}"));
        assert_eq!(typed(&[("content-type", "multipart/mixed")]), format!("multipart/mixed; boundary={BOUNDARY}"));
        assert_eq!(typed(&[("Content-Type", "multipart/mixed; boundary=x")]), "multipart/mixed; boundary=x");
    }

    #[test]
    fn fault_of_a_part_has_its_place() {
        let fault = |part: FormPart| written(&[FormPart { name: "x".to_owned(), ..part }]).expect_err("a fault");
        assert!(fault(FormPart::default()).starts_with("multipart[0]: needs a `value` or a `file`"));
        let file = FormPart { file: Some("/nowhere".into()), ..FormPart::default() };
        assert!(fault(file).starts_with("multipart[0]: cannot read /nowhere: "));
        assert!(fault(part("x", BOUNDARY)).contains("between two parts"));
    }
}
