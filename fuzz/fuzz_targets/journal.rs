#![no_main]

marshal_fuzz::target!("journal");
