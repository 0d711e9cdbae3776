//! Conversations as real agents have them, against the rehearsal model's answers.

use super::*;

fn endpoint(path: &str) -> Endpoint {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    Endpoint::from_request(true, path, query).expect(path)
}

fn json_of(answer: Answer) -> Value {
    match answer.body {
        Body::Json(value) => value,
        Body::Events(_) => panic!("a stream"),
    }
}

/// The events of a stream, as JSON.
fn events_of(answer: Answer) -> Vec<Value> {
    let Body::Events(events) = answer.body else {
        panic!("no stream");
    };
    let data = events.iter().flat_map(|event| event.lines());
    let data = data.filter_map(|line| line.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]")
        .map(|data| serde_json::from_str(data).expect("JSON"))
        .collect()
}

fn answer_for(path: &str, body: &Value) -> Answer {
    build_answer(
        &endpoint(path),
        body,
        body.to_string().len(),
        &Scripts::default(),
    )
}

#[test]
fn a_path_is_known_below_any_base_address() {
    for (path, expect) in [
        ("/v1/chat/completions", Endpoint::Chat),
        ("/agents/codex/v1/responses", Endpoint::Responses),
        ("/v1/messages?beta=true", Endpoint::Messages),
        (
            "/anthropic/v1/messages/count_tokens",
            Endpoint::MessageTokens,
        ),
        (
            "/v1beta/models/gemini-2.5-pro:countTokens",
            Endpoint::ContentTokens,
        ),
        (
            "/x/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse",
            Endpoint::Generate {
                model: "gemini-2.5-pro".into(),
                stream: true,
                sse: true,
            },
        ),
    ] {
        assert_eq!(endpoint(path), expect, "{path}");
    }
    let get = |path| Endpoint::from_request(false, path, "");
    assert_eq!(get("/v1/models"), Some(Endpoint::Models));
    assert_eq!(get("/v1beta/models"), Some(Endpoint::GeminiModels));
    assert_eq!(
        get("/v1/models/gpt-5"),
        Some(Endpoint::Model("gpt-5".into()))
    );
    for path in ["/", "/v1", "/v1/files", "/v1/chat/completions"] {
        assert_eq!(get(path), None, "{path}");
    }
    assert_eq!(
        Endpoint::from_request(true, "/v1/models/x:embedContent", ""),
        None
    );
}

#[test]
fn openai_chat_gets_a_call_and_then_the_result_again() {
    let tools = json!([{ "type": "function", "function": {
        "name": "terminal",
        "parameters": { "type": "object", "properties": { "command": { "type": "string" } } },
    }}]);
    let mut messages = vec![
        json!({ "role": "system", "content": "You are an agent. RUN: nothing" }),
        json!({ "role": "user", "content": "RUN: touch a\nSAY: bye" }),
    ];
    let first = json_of(answer_for(
        "/v1/chat/completions",
        &json!({ "model": "m", "messages": messages, "tools": tools }),
    ));
    let choice = &first["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    let call = choice["message"]["tool_calls"][0].clone();
    assert_eq!(call["function"]["name"], "terminal");
    assert_eq!(call["function"]["arguments"], r#"{"command":"touch a"}"#);
    assert!(first["usage"]["prompt_tokens"].as_u64() > Some(10));
    messages.push(json!({ "role": "assistant", "tool_calls": [call] }));
    messages.push(json!({ "role": "tool", "tool_call_id": "x", "content": "refused: no" }));
    let body = json!({
        "model": "m", "messages": messages, "tools": tools, "stream": true,
        "stream_options": { "include_usage": true },
    });
    let events = events_of(answer_for("/v1/chat/completions", &body));
    let text: String = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(text, "the tool said: refused: no\nbye\n");
    let last = events.last().expect("events");
    assert_eq!(last["choices"], json!([]));
    assert!(last["usage"]["total_tokens"].as_u64() > Some(10));
}

#[test]
fn openai_responses_streams_a_function_call_and_a_text() {
    let tools = json!([
        { "type": "web_search" },
        { "type": "function", "name": "shell", "parameters": { "type": "object",
          "properties": { "command": { "type": "array" } }, "required": ["command"] } },
    ]);
    let context = "<environment_context>\n  <cwd>/workspace</cwd>\n</environment_context>";
    let message = |text: &str| {
        json!({ "type": "message", "role": "user",
                "content": [{ "type": "input_text", "text": text }] })
    };
    let mut input = vec![message(context), message("RUN: ls")];
    let body =
        |input: &[Value]| json!({ "model": "m", "input": input, "tools": tools, "stream": true });
    let events = events_of(answer_for("/v1/responses", &body(&input)));
    let item = events
        .iter()
        .find(|event| event["type"] == "response.output_item.done")
        .expect("an item");
    assert_eq!(item["item"]["type"], "function_call");
    assert_eq!(
        item["item"]["arguments"],
        r#"{"command":["bash","-lc","ls"]}"#
    );
    input.push(item["item"].clone());
    input.push(json!({ "type": "function_call_output", "call_id": "c", "output": "a.txt" }));
    let events = events_of(answer_for("/v1/responses", &body(&input)));
    let last = events.last().expect("events");
    assert_eq!(last["type"], "response.completed");
    assert_eq!(
        last["response"]["output"][0]["content"][0]["text"],
        "the tool said: a.txt\n"
    );
    let numbers: Vec<u64> = events
        .iter()
        .filter_map(|event| event["sequence_number"].as_u64())
        .collect();
    let expected: Vec<u64> = (0..events.len() as u64).collect();
    assert_eq!(numbers, expected);
}

#[test]
fn anthropic_messages_streams_a_tool_use_and_knows_results_beside_reminders() {
    let tools = json!([{ "name": "Bash", "input_schema": { "type": "object",
        "properties": { "command": { "type": "string" }, "description": { "type": "string" } },
        "required": ["command"] } }]);
    let prompt = json!([
        { "type": "text", "text": "<system-reminder>\nRUN: not this\n</system-reminder>" },
        { "type": "text", "text": "RUN: ls" },
    ]);
    let body = json!({
        "model": "m", "stream": true, "tools": tools,
        "messages": [
            { "role": "user", "content": prompt },
            { "role": "assistant", "content": [{ "type": "tool_use", "id": "t", "name": "Bash", "input": {} }] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "t", "is_error": true,
                  "content": [{ "type": "text", "text": "the user said no" }] },
                { "type": "text", "text": "<system-reminder>x</system-reminder>" },
            ]},
        ],
    });
    let events = events_of(answer_for("/v1/messages", &body));
    let text: String = events
        .iter()
        .filter_map(|event| event["delta"]["text"].as_str())
        .collect();
    assert_eq!(text, "the tool said: the user said no\n");
    let mut first = body.clone();
    first["messages"] = json!([{ "role": "user", "content": prompt }]);
    let events = events_of(answer_for("/v1/messages", &first));
    let part = events
        .iter()
        .find_map(|event| event["delta"]["partial_json"].as_str())
        .expect("arguments");
    // A reminder is no prompt, whatever it contains.
    assert_eq!(part, r#"{"command":"ls"}"#);
    let kinds: Vec<&str> = events.iter().filter_map(|e| e["type"].as_str()).collect();
    assert_eq!(
        kinds,
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    let count = json_of(answer_for("/v1/messages/count_tokens", &body));
    assert!(count["input_tokens"].as_u64() > Some(10));
}

#[test]
fn gemini_gets_function_calls_and_objects_of_its_schemas() {
    let tools = json!([{ "functionDeclarations": [{ "name": "run_shell_command",
        "parametersJsonSchema": { "type": "object",
            "properties": { "command": { "type": "string" } }, "required": ["command"] } }] }]);
    let user = |text: &str| json!({ "role": "user", "parts": [{ "text": text }] });
    let body = json!({ "contents": [user("We are setting up."), user("RUN: ls")], "tools": tools });
    let path = "/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse";
    let events = events_of(answer_for(path, &body));
    let call = &events[0]["candidates"][0]["content"]["parts"][0]["functionCall"];
    assert_eq!(call["name"], "run_shell_command");
    assert_eq!(call["args"]["command"], "ls");
    assert_eq!(events[0]["candidates"][0]["finishReason"], "STOP");
    let response = json!({ "role": "user", "parts": [{ "functionResponse": {
        "name": "run_shell_command", "response": { "error": "denied" } } }] });
    let body = json!({ "contents": [user("RUN: ls"), response], "tools": tools });
    let whole = json_of(answer_for("/v1beta/models/m:generateContent", &body));
    let parts = &whole["candidates"][0]["content"]["parts"];
    assert_eq!(parts[0]["text"], "the tool said: denied\n");
    assert!(whole["usageMetadata"]["totalTokenCount"].as_u64() > Some(5));
    let body = json!({ "contents": [user("RUN: ls")], "generationConfig": {
        "responseMimeType": "application/json",
        "responseJsonSchema": { "type": "object", "required": ["next"],
            "properties": { "next": { "type": "string", "enum": ["user", "model"] } } } } });
    let whole = json_of(answer_for("/v1beta/models/m:generateContent", &body));
    let parts = &whole["candidates"][0]["content"]["parts"];
    assert_eq!(parts[0]["text"], r#"{"next":"user"}"#);
}

#[test]
fn the_same_request_has_the_same_answer() {
    let body = json!({ "model": "m", "messages": [{ "role": "user", "content": "SAY: x" }] });
    let once = answer_for("/v1/chat/completions", &body);
    assert_eq!(once, answer_for("/v1/chat/completions", &body));
}

#[test]
fn no_body_of_any_shape_is_a_panic() {
    for body in [
        json!(null),
        json!([]),
        json!({ "messages": 1, "input": { "a": 1 }, "contents": "x", "tools": [1, {}] }),
        json!({ "messages": [1, { "role": "user" }, { "role": "tool" }] }),
        json!({ "contents": [{ "parts": [1, { "text": 2 }] }, 5] }),
        json!({ "input": [{ "type": "function_call_output" }, 4] }),
    ] {
        for path in [
            "/v1/chat/completions",
            "/v1/responses",
            "/v1/messages",
            "/v1beta/models/m:generateContent",
        ] {
            let _ = answer_for(path, &body);
        }
    }
}
