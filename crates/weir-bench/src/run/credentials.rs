//! The credentials of a consumer: the request fields for each policy that authenticates.

use aws_lc_rs::{aead, hmac};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};

use crate::{scenario::ScenarioRow, target::TemplateConsumer};

/// The fields that a consumer sends with a GET of `path`, for the policies of a row.
pub(super) fn fields(row: &ScenarioRow, consumer: &TemplateConsumer, path: &str) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    let mut authorization = |value: String| fields.push(("Authorization".to_owned(), value));
    if row.policies.contains_key("basic-auth") {
        let pair = STANDARD.encode(format!("{}:{}", consumer.name, consumer.password));
        authorization(format!("Basic {pair}"));
    }
    if row.policies.contains_key("jwt-auth") {
        authorization(format!("Bearer {}", token(consumer)));
    }
    if row.policies.contains_key("jwe-decrypt") {
        authorization(format!("Bearer {}", encrypted(consumer)));
    }
    if row.policies.contains_key("hmac-auth") {
        let date = jiff::Timestamp::now().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        let signature = sign(consumer, &format!("{}\nGET {path}\ndate: {date}\n", consumer.name));
        authorization(format!(
            "Signature keyId=\"{}\",algorithm=\"hmac-sha256\",headers=\"@request-target date\",signature=\"{}\"",
            consumer.name,
            STANDARD.encode(signature)
        ));
        fields.push(("Date".to_owned(), date));
    }
    if row.policies.contains_key("key-auth") {
        fields.push(("apikey".to_owned(), consumer.key.clone()));
    }
    fields
}

/// A JSON Web Token without expiry (RFC 7519), signed with the consumer's secret.
fn token(consumer: &TemplateConsumer) -> String {
    let part = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let head = part(serde_json::json!({ "alg": "HS256", "typ": "JWT" }));
    let claims = part(serde_json::json!({ "key": consumer.name }));
    let signature = sign(consumer, &format!("{head}.{claims}"));
    format!("{head}.{claims}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// An encrypted token (RFC 7516, compact, `dir` with `A256GCM`); its key is the first 32 bytes of the consumer's secret.
fn encrypted(consumer: &TemplateConsumer) -> String {
    let head = serde_json::json!({ "alg": "dir", "enc": "A256GCM", "kid": consumer.name }).to_string();
    let head = URL_SAFE_NO_PAD.encode(head);
    let key = aead::UnboundKey::new(&aead::AES_256_GCM, &consumer.secret.as_bytes()[..32]).expect("a key has 32 bytes");
    let nonce = [1; aead::NONCE_LEN];
    let mut content = br#"{"plan":"gold"}"#.to_vec();
    let tag = aead::LessSafeKey::new(key).seal_in_place_separate_tag(
        aead::Nonce::assume_unique_for_key(nonce),
        aead::Aad::from(head.as_bytes()),
        &mut content,
    );
    let tag = tag.expect("a short text can be encrypted");
    let [nonce, content, tag] = [&nonce[..], &content, tag.as_ref()].map(|part| URL_SAFE_NO_PAD.encode(part));
    format!("{head}..{nonce}.{content}.{tag}")
}

fn sign(consumer: &TemplateConsumer, text: &str) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, consumer.secret.as_bytes()), text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::credentials;

    #[test]
    fn each_policy_gets_the_field_it_reads() {
        let (_, consumers) = credentials(1, 1);
        let named = |policies: &str| {
            let row: ScenarioRow = serde_saphyr::from_str(&format!("{{name: a, policies: {policies}}}")).unwrap();
            fields(&row, &consumers[0], "/get").into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(named("{key-auth: {}}"), ["apikey"]);
        assert_eq!(named("{jwt-auth: {}}"), ["Authorization"]);
        assert_eq!(named("{jwe-decrypt: {}}"), ["Authorization"]);
        assert_eq!(encrypted(&consumers[0]).split('.').count(), 5);
        assert_eq!(named("{hmac-auth: {}}"), ["Authorization", "Date"]);
        assert_eq!(named("{cors: {}}"), Vec::<String>::new());
        assert_eq!(token(&consumers[0]).split('.').count(), 3);
    }
}
