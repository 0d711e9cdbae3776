//! Chats: conversations that the supervisor keeps, and their turns.

use super::words;

words!(
    /// How a chat goes on.
    ChatMode {
        /// A person sends each message.
        Chat = "chat",
    }
);

words!(
    /// Where a message of a chat stands.
    TurnState {
        /// It was accepted and no agent has it.
        Waiting = "waiting",
        /// A task carries it to the agent.
        Running = "running",
        /// Its turn ended.
        Ended = "ended",
    }
);
