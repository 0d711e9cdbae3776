#![no_main]

marshal_fuzz::target!("loaf");
