#![no_main]

marshal_fuzz::target!("mcp");
