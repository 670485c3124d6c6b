"""Turns what a person does in the live view into DevTools input on the page that is shown.

The frames of a page show neither the list of a `<select>` nor a file dialog: the viewer draws the list itself, and a
file dialog is answered with files that the person sends.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from leasekeeper.runtime.devtools import ANSWER_SECONDS, DevToolsError
from leasekeeper.runtime.screencast import Screencast

ASK_SECONDS: Final = 2.0  # a page that hangs delays each click by this
MAX_TEXT: Final = 1_000_000
MAX_OPTIONS: Final = 1_000
MAX_FILES: Final = 10
MAX_FILE_TEXT: Final = 24 * 1024 * 1024  # in base64; a command to the browser has to fit into MAX_COMMAND_BYTES
_MOUSE: Final = {"down": "mousePressed", "up": "mouseReleased", "move": "mouseMoved", "wheel": "mouseWheel"}
_BUTTONS: Final = ("left", "middle", "right", "back", "forward")
_DESCRIBE: Final = """function(limit) {
  return {picked: this.selectedIndex, options: [...this.options].slice(0, limit).map(each => ({
    text: String(each.label || each.text).slice(0, 200),
    disabled: each.disabled || !!(each.parentElement && each.parentElement.disabled)}))};
}"""
_CLOSEST: Final = """function() {
  const element = this.nodeType === 1 ? this : this.parentElement;
  const found = element && element.closest('select');
  return found && !found.disabled && !found.multiple && found.size <= 1 ? found : null;
}"""
_PICK: Final = """function(index) {
  if (!this.options[index] || this.selectedIndex === index) return;
  this.selectedIndex = index;
  for (const type of ['input', 'change']) this.dispatchEvent(new Event(type, {bubbles: true}));
}"""
_GIVE_FILES: Final = """function(files) {
  const given = new DataTransfer();
  for (const each of files) {
    const bytes = Uint8Array.from(atob(each.data), letter => letter.charCodeAt(0));
    given.items.add(new File([bytes], each.name, {type: each.type}));
  }
  this.files = given.files;
  for (const type of ['input', 'change']) this.dispatchEvent(new Event(type, {bubbles: true, composed: true}));
}"""


class ViewerInput:
    """The input of one person. `say` sends to the viewer what it has to draw: a list, a dialog, a file dialog."""

    def __init__(self, screen: Screencast, say: Callable[[str, object], None]) -> None:
        self._screen = screen
        self._say = say
        self._list = ""
        self._swallow_release = False
        self._asks_files: Mapping[str, Any] | None = None
        self._acting: asyncio.Lock = asyncio.Lock()

    async def attached(self) -> None:
        """Another page is shown: from now on its file dialogs are answered here."""
        self._asks_files = None
        await self._send("Page.setInterceptFileChooserDialog", {"enabled": True})

    async def heard(self, method: str, params: Mapping[str, Any]) -> None:
        """Handle an event of the page that is shown."""
        if method == "Page.fileChooserOpened":
            self._asks_files = params
            self._say("files", {"multiple": params.get("mode") == "selectMultiple"})

    async def act(self, message: Mapping[str, Any]) -> None:
        """Do one thing that the person did, after those before it. What is not understood is ignored."""
        act = {
            "mouse": self._mouse,
            "key": self._key,
            "text": self._text,
            "pick": self._pick,
            "dialog": self._dialog,
            "files": self._files,
        }.get(str(message.get("k")))
        if act is not None and self._screen.session:
            with suppress(DevToolsError, KeyError, TypeError, ValueError):
                async with self._acting:
                    await act(message)

    async def _send(self, method: str, params: Mapping[str, Any]) -> None:
        await self._screen.devtools.send(method, params, self._screen.session)

    async def _ask(self, method: str, params: Mapping[str, Any], seconds: float = ASK_SECONDS) -> Mapping[str, Any]:
        return await self._screen.devtools.ask(method, params, self._screen.session, seconds=seconds)

    async def _mouse(self, message: Mapping[str, Any]) -> None:
        what, button = str(message["t"]), int(message.get("b", 0))
        x, y = float(message["x"]), float(message["y"])
        if what == "up" and self._swallow_release:
            self._swallow_release = False
            return
        if what == "down" and button == 0 and await self._opens_list(x, y):
            self._swallow_release = True
            return
        event: dict[str, Any] = {"type": _MOUSE[what], "x": x, "y": y, "modifiers": int(message.get("m", 0)) & 15}
        event["buttons"] = int(message.get("bs", 0)) & 31
        if what in ("down", "up"):
            event |= {"button": _BUTTONS[button], "clickCount": min(max(1, int(message.get("n", 1))), 3)}
        elif what == "wheel":
            event |= {"deltaX": float(message.get("dx", 0)), "deltaY": float(message.get("dy", 0))}
        await self._send("Input.dispatchMouseEvent", event)

    async def _opens_list(self, x: float, y: float) -> bool:
        """Whether there is a `<select>` at this point: then its list goes to the viewer, and the page gets no click."""
        try:
            node = await self._ask("DOM.getNodeForLocation", {"x": int(x), "y": int(y)})
            found = await self._ask("DOM.resolveNode", {"backendNodeId": node["backendNodeId"]})
            select = await self._call(found["object"]["objectId"], _CLOSEST, by_value=False)
            self._list = str(select.get("objectId", "")) if select.get("subtype") == "node" else ""
            if not self._list:
                return False
            shown = await self._call(self._list, _DESCRIBE, MAX_OPTIONS, by_value=True)
            self._say("list", {"x": x, "y": y, **shown["value"]})
        except (DevToolsError, KeyError):
            return False
        return True

    async def _call(self, on: str, code: str, *arguments: object, by_value: bool) -> Mapping[str, Any]:
        found = await self._ask("Runtime.callFunctionOn", _calling(on, code, arguments, by_value=by_value))
        result: Mapping[str, Any] = found["result"]
        return result

    async def _do(self, on: str, code: str, *arguments: object) -> None:
        """Call without waiting: the page's handlers may take long, or open a dialog that this person must answer."""
        await self._send("Runtime.callFunctionOn", _calling(on, code, arguments, by_value=True))

    async def _pick(self, message: Mapping[str, Any]) -> None:
        on, self._list = self._list, ""
        if on and message.get("index") is not None:
            await self._do(on, _PICK, int(message["index"]))

    async def _key(self, message: Mapping[str, Any]) -> None:
        down, text = message["t"] == "down", str(message.get("text", ""))[:8]
        event: dict[str, Any] = {
            "type": ("keyDown" if text else "rawKeyDown") if down else "keyUp",
            "key": str(message["key"])[:32],
            "code": str(message.get("code", ""))[:32],
            "windowsVirtualKeyCode": int(message.get("vk", 0)) & 0xFFFF,
            "modifiers": int(message.get("m", 0)) & 15,
        }
        if down and text:
            event["text"] = text
        if down and message.get("repeat"):
            event["autoRepeat"] = True
        await self._send("Input.dispatchKeyEvent", event)

    async def _text(self, message: Mapping[str, Any]) -> None:
        """Text as a whole: what an input method composed, or what was pasted."""
        await self._send("Input.insertText", {"text": str(message["text"])[:MAX_TEXT]})

    async def _dialog(self, message: Mapping[str, Any]) -> None:
        answer = {"accept": bool(message.get("accept")), "promptText": str(message.get("text", ""))[:MAX_TEXT]}
        await self._send("Page.handleJavaScriptDialog", answer)

    async def _files(self, message: Mapping[str, Any]) -> None:
        """Files for the file input that asked, built inside the page: nothing is written to the machine's disk."""
        asked, self._asks_files = self._asks_files, None
        given = [
            {"name": str(each["name"])[:255], "type": str(each.get("type", ""))[:100], "data": str(each["data"])}
            for each in list(message.get("files") or ())[:MAX_FILES]
        ]
        if asked is None or not given or sum(len(each["data"]) for each in given) > MAX_FILE_TEXT:
            return
        # A longer limit: nobody wants to choose the files again because the browser was busy for a moment.
        found = await self._ask("DOM.resolveNode", {"backendNodeId": asked["backendNodeId"]}, seconds=ANSWER_SECONDS)
        await self._do(found["object"]["objectId"], _GIVE_FILES, given)


def _calling(on: str, code: str, arguments: Sequence[object], *, by_value: bool) -> dict[str, object]:
    return {
        "objectId": on,
        "functionDeclaration": code,
        "arguments": [{"value": each} for each in arguments],
        "returnByValue": by_value,
        "userGesture": True,
    }
