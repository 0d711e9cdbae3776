//! Bodies of the four formats: what passes, what does not.

use super::*;

fn look(body: &str) -> Result<(), Refusal> {
    inspect_body(Some("application/json"), body.as_bytes())
}

fn passes(body: &str) {
    assert_eq!(look(body), Ok(()), "{body}");
}

fn refused(body: &str, why: Why) {
    match look(body) {
        Ok(()) => panic!("passed: {body}"),
        Err(refusal) => assert_eq!(refusal.reason, Some(why), "{body}: {}", refusal.message),
    }
}

/// A body with these tools.
fn tools(tools: &str) -> String {
    format!(r#"{{"model":"m","tools":[{tools}],"messages":[]}}"#)
}

#[test]
fn tools_that_the_agent_carries_out_pass() {
    for tool in [
        r#"{"name":"Bash","description":"x","input_schema":{"type":"object","properties":{"url":{"type":"string"},"tools":{"type":"array"}}}}"#,
        r#"{"type":"custom","name":"a","input_schema":{}}"#,
        r#"{"type":null,"name":"a","input_schema":{}}"#,
        r#"{"type":"bash_20250124","name":"bash"}"#,
        r#"{"type":"text_editor_20250728","name":"e"}"#,
        r#"{"type":"function","function":{"name":"a","parameters":{"properties":{"mcp_servers":{},"image_url":{"default":"https://x"}}}}}"#,
        r#"{"type":"function","name":"web_search","parameters":{}}"#,
        r#"{"type":"local_shell"}"#,
        r#"{"type":"namespace","name":"n","tools":[{"type":"function","name":"a"}]}"#,
        r#"{"functionDeclarations":[{"name":"google_search","parameters":{"googleSearch":{}}}]}"#,
        r#"{"function_declarations":[]}"#,
    ] {
        passes(&tools(tool));
    }
    passes(r#"{"model":"m","tools":[]}"#);
    passes(r#"{"model":"m","tools":null,"mcp_servers":null,"container":null}"#);
}

#[test]
fn tools_that_the_provider_runs_and_unknown_ones_are_refused() {
    for tool in [
        r#"{"type":"web_search_20250305","name":"web_search"}"#,
        r#"{"type":"web_fetch_20250910","name":"web_fetch"}"#,
        r#"{"type":"code_execution_20250825","name":"code_execution"}"#,
        r#"{"type":"computer_20250124","name":"computer"}"#,
        r#"{"type":"web_search"}"#,
        r#"{"type":"web_search_preview"}"#,
        r#"{"type":"file_search","vector_store_ids":["x"]}"#,
        r#"{"type":"code_interpreter","container":{"type":"auto"}}"#,
        r#"{"type":"image_generation"}"#,
        r#"{"type":"computer_use_preview"}"#,
        r#"{"type":"mcp","server_label":"x","server_url":"https://x"}"#,
        r#"{"type":"function","name":"a","server_url":"https://x"}"#,
        r#"{"type":"shell","environment":{"type":"container_auto"}}"#,
        r#"{"type":"something_new"}"#,
        r#"{"type":"Function"}"#,
        r#"{"type":7,"name":"a"}"#,
        r#"{"googleSearch":{}}"#,
        r#"{"google_search":{}}"#,
        r#"{"googleSearchRetrieval":{}}"#,
        r#"{"urlContext":{}}"#,
        r#"{"code_execution":{}}"#,
        r#"{"functionDeclarations":[],"googleSearch":{}}"#,
        r#"{"functionDeclarations":[],"somethingNew":{}}"#,
        r#"{"name":"a","codeExecution":{}}"#,
        r#"{"type":"namespace","tools":[{"type":"mcp"}]}"#,
        r#"{"NAME":"a","GoogleSearch":{}}"#,
        "{}",
        "\"web_search\"",
        "[{\"type\":\"web_search\"}]",
    ] {
        refused(&tools(tool), Why::ServerTool);
    }
    // Wherever a list of tools stands, and however its key is written.
    for body in [
        r#"{"Tools":[{"type":"web_search"}]}"#,
        r#"{"to\u006fls":[{"type":"web_search"}]}"#,
        r#"{"requests":[{"params":{"tools":[{"type":"web_search"}]}}]}"#,
        r#"{"session":{"tools":[{"type":"mcp"}]}}"#,
        r#"{"tools":{"googleSearch":{}}}"#,
        r#"{"tools":"web_search"}"#,
        r#"{"mcp_servers":[{"type":"url","url":"https://x"}]}"#,
        r#"{"mcpServers":{}}"#,
        r#"{"web_search_options":{}}"#,
        r#"{"container":"c_1"}"#,
        r#"{"container":{"skills":[]}}"#,
        r#"{"cachedContent":"cachedContents/x"}"#,
        r#"{"prompt":{"id":"pmpt_1"}}"#,
        r#"{"search_parameters":{"mode":"on"}}"#,
        r#"{"enable_search":true}"#,
        r#"{"toolſ":[{"type":"web_search"}]}"#,
        r#"{"mcp_serverſ":[]}"#,
        r#"{"plugins":[{"id":"web"}]}"#,
    ] {
        refused(body, Why::ServerTool);
    }
    passes(r#"{"prompt":"complete this"}"#);
    passes(r#"{"enable_search":false}"#);
}

#[test]
fn addresses_that_the_provider_would_fetch_are_refused_and_data_passes() {
    for body in [
        r#"{"messages":[{"content":[{"type":"image","source":{"type":"url","url":"https://x/?q=data"}}]}]}"#,
        r#"{"messages":[{"content":[{"type":"image","source":{"url":"https://x","type":"url"}}]}]}"#,
        r#"{"messages":[{"content":[{"type":"document","source":{"url":"https://x"}}]}]}"#,
        r#"{"messages":[{"content":[{"type":"image_url","image_url":{"url":"https://x"}}]}]}"#,
        r#"{"input":[{"content":[{"type":"input_image","image_url":"https://x"}]}]}"#,
        r#"{"input":[{"content":[{"type":"input_file","file_url":"http://x"}]}]}"#,
        r#"{"contents":[{"parts":[{"fileData":{"fileUri":"gs://b/o"}}]}]}"#,
        r#"{"contents":[{"parts":[{"file_data":{"file_uri":"https://x"}}]}]}"#,
        r#"{"messages":[{"content":[{"type":"image","source":[{"type":"url","url":"https://x"}]}]}]}"#,
        r#"{"contents":[{"parts":[{"filedata":{"FileURI":"https://x"}}]}]}"#,
        // A second spelling hides nothing.
        r#"{"messages":[{"input":{"image_url":"https://x"},"Input":{}}]}"#,
        // What only looks like a call is none.
        r#"{"type":"tool_use","input":[{"content":[{"image_url":"https://x"}]}]}"#,
        r#"{"messages":[{"type":"other","input":{"image_url":"https://x"}}]}"#,
    ] {
        refused(body, Why::RemoteContent);
    }
    for body in [
        r#"{"messages":[{"content":[{"type":"image","source":{"type":"base64","data":"AA=="}}]}]}"#,
        r#"{"messages":[{"content":[{"type":"image_url","image_url":{"url":"DATA:image/png;base64,AA=="}}]}]}"#,
        r#"{"messages":[{"role":"assistant","content":[{"input":{"image_url":"https://x","tools":[{"type":"mcp"}]},"type":"tool_use","id":"1","name":"a"}]}]}"#,
        r#"{"contents":[{"parts":[{"functionCall":{"name":"f","args":{"fileUri":"https://x","tools":["a"]}}}]}]}"#,
        r#"{"contents":[{"parts":[{"functionResponse":{"name":"f","response":{"image_url":"https://x"}}}]}]}"#,
        r#"{"messages":[{"content":"see https://x and \"tools\":[{\"type\":\"mcp\"}]"}]}"#,
        r#"{"input":"https://x","metadata":{"user_id":"u"}}"#,
    ] {
        passes(body);
    }
}

#[test]
fn what_is_no_plain_json_object_is_refused() {
    for body in [
        "{",
        "[]",
        "null",
        "\"x\"",
        "7",
        "{}x",
        "{} {}",
        "{'a':1}",
        "{\"a\":1,}",
        "{\"a\":NaN}",
        "\u{feff}{}",
        r#"{"a":1,"a":2}"#,
        r#"{"tools":[],"too\u006cs":[{"type":"mcp"}]}"#,
        r#"{"a":{"b":[{"c":1,"c":1}]}}"#,
        r#"{"a":"\ud800"}"#,
    ] {
        refused(body, Why::Body);
    }
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(200), "]".repeat(200));
    refused(&deep, Why::Body);
    let keys: Vec<String> = (0..5000).map(|key| format!("\"{key}\":1")).collect();
    refused(&format!("{{{}}}", keys.join(",")), Why::Body);
    let bytes = inspect_body(Some("application/json"), b"{\"a\":\"\xff\"}");
    assert_eq!(
        bytes.map_err(|refusal| refusal.reason),
        Err(Some(Why::Body))
    );
}

#[test]
fn a_body_says_that_it_is_json_or_is_empty() {
    assert_eq!(inspect_body(None, b""), Ok(()));
    for good in [
        "application/json",
        "Application/JSON; charset=UTF-8",
        "application/json;",
    ] {
        assert_eq!(inspect_body(Some(good), b"{}"), Ok(()), "{good}");
    }
    for bad in [
        None,
        Some("text/plain"),
        Some("multipart/form-data"),
        Some("application/json; charset=utf-16"),
        Some("application/jsonp"),
    ] {
        let refused = inspect_body(bad, b"{}").map_err(|refusal| (refusal.reason, refusal.status));
        assert_eq!(refused, Err((Some(Why::Body), 415)), "{bad:?}");
    }
}

proptest::proptest! {
    #[test]
    fn no_body_panics(body in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
        let _ = inspect_body(Some("application/json"), &body);
    }
}
